package matrix;

import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import jcifs.CIFSContext;
import jcifs.config.PropertyConfiguration;
import jcifs.context.BaseContext;
import jcifs.smb.NtlmPasswordAuthenticator;
import jcifs.smb.SmbFile;
import jcifs.smb.SmbRandomAccessFile;

/** jcifs-ng by its URLs. */
final class JcifsNg extends Adapter {
    private CIFSContext context;
    private String root;
    private String top;

    @Override
    void connect(Map<String, Object> r) throws Exception {
        Properties p = new Properties();
        p.setProperty("jcifs.smb.client.minVersion", "SMB202");
        p.setProperty("jcifs.smb.client.maxVersion", "SMB311");
        p.setProperty("jcifs.smb.client.responseTimeout", "30000");
        if (text(r, "share").startsWith("enc")) {
            p.setProperty("jcifs.smb.client.encryptionEnabled", "true");
        }
        context = new BaseContext(new PropertyConfiguration(p)).withCredentials(new NtlmPasswordAuthenticator(null, text(r, "user"), text(r, "password")));
        root = "smb://" + text(r, "host") + ":" + number(r, "port") + "/";
        top = root + text(r, "share") + "/";
        try (SmbFile f = new SmbFile(top, context)) {
            f.connect();
            f.exists();
        }
    }

    /** Children are resolved, not parsed: names may have characters that a URL gives a meaning. */
    private SmbFile at(String path) throws Exception {
        SmbFile f = new SmbFile(top, context);
        for (String part : path.split("/")) {
            f = new SmbFile(f.getLocator().getURL().toString().endsWith("/") ? f : new SmbFile(f.getLocator().getURL() + "/", context), part);
        }
        return f;
    }

    private SmbFile folder(String path) throws Exception {
        SmbFile f = new SmbFile(top, context);
        for (String part : path.split("/")) {
            f = new SmbFile(f, part + "/");
        }
        return f;
    }

    @Override
    Map<String, Object> ask(String op, Map<String, Object> r) throws Exception {
        String path = r.containsKey("path") ? text(r, "path") : null;
        switch (op) {
            case "put":
                try (SmbFile f = at(path); OutputStream to = f.getOutputStream()) {
                    Files.copy(Paths.get(text(r, "local")), to);
                }
                return null;
            case "get":
                try (SmbFile f = at(path); InputStream from = f.getInputStream(); OutputStream to = new FileOutputStream(text(r, "local"))) {
                    from.transferTo(to);
                }
                return null;
            case "write_at":
                try (SmbFile f = at(path); SmbRandomAccessFile to = new SmbRandomAccessFile(f, "rw")) {
                    to.seek(number(r, "offset"));
                    to.write(Files.readAllBytes(Paths.get(text(r, "local"))));
                }
                return null;
            case "truncate":
                try (SmbFile f = at(path); SmbRandomAccessFile to = new SmbRandomAccessFile(f, "rw")) {
                    to.setLength(number(r, "size"));
                }
                return null;
            case "list":
                try (SmbFile f = folder(path)) {
                    return Map.of("names", Arrays.asList(f.list()));
                }
            case "stat":
                try (SmbFile f = at(path)) {
                    return Map.of("size", f.isDirectory() ? 0L : f.length(), "directory", f.isDirectory(), "mtime", f.lastModified() / 1000);
                }
            case "mkdir":
                try (SmbFile f = folder(path)) {
                    f.mkdir();
                }
                return null;
            case "remove_all":
                try (SmbFile f = folder(path)) {
                    f.delete();
                }
                return null;
            case "rmdir":
                throw new NotOffered("removal of a folder that is not recursive");
            case "delete":
                try (SmbFile f = at(path)) {
                    f.delete();
                }
                return null;
            case "rename":
                try (SmbFile f = at(text(r, "old")); SmbFile to = at(text(r, "new"))) {
                    f.renameTo(to, true);
                }
                return null;
            case "set_time":
                try (SmbFile f = at(path)) {
                    f.setLastModified(number(r, "mtime") * 1000);
                }
                return null;
            case "set_attributes":
                try (SmbFile f = at(path)) {
                    f.setAttributes(SmbFile.ATTR_HIDDEN);
                }
                return null;
            case "space":
                throw new NotOffered("query of a share's size, only of its free space");
            case "shares": {
                List<String> names = new ArrayList<>();
                try (SmbFile f = new SmbFile(root, context)) {
                    for (String n : f.list()) {
                        names.add(n.replace("/", ""));
                    }
                }
                return Map.of("names", names);
            }
            case "acl":
                try (SmbFile f = at(path)) {
                    return Map.of("acl", String.valueOf(f.getOwnerUser()) + " " + Arrays.toString(f.getSecurity()));
                }
            default:
                throw new NotOffered(op);
        }
    }
}
