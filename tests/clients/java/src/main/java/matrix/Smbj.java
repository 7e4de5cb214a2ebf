package matrix;

import com.hierynomus.msdtyp.AccessMask;
import com.hierynomus.msdtyp.FileTime;
import com.hierynomus.msfscc.FileAttributes;
import com.hierynomus.msfscc.fileinformation.FileAllInformation;
import com.hierynomus.msfscc.fileinformation.FileBasicInformation;
import com.hierynomus.msfscc.fileinformation.FileIdBothDirectoryInformation;
import com.hierynomus.mssmb2.SMB2CreateDisposition;
import com.hierynomus.mssmb2.SMB2CreateOptions;
import com.hierynomus.mssmb2.SMB2ShareAccess;
import com.hierynomus.smbj.SMBClient;
import com.hierynomus.smbj.SmbConfig;
import com.hierynomus.smbj.auth.AuthenticationContext;
import com.hierynomus.smbj.session.Session;
import com.hierynomus.smbj.share.DiskEntry;
import com.hierynomus.smbj.share.DiskShare;
import com.hierynomus.smbj.share.File;
import com.rapid7.client.dcerpc.mssrvs.ServerService;
import com.rapid7.client.dcerpc.mssrvs.dto.NetShareInfo0;
import com.rapid7.client.dcerpc.transport.SMBTransportFactories;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** smbj, with dcerpc of its companions for the list of shares. */
final class Smbj extends Adapter {
    private Session session;
    private DiskShare share;

    @Override
    void connect(Map<String, Object> r) throws Exception {
        SmbConfig config = SmbConfig.builder().withTimeout(30, TimeUnit.SECONDS).withEncryptData(text(r, "share").startsWith("enc")).build();
        session = new SMBClient(config).connect(text(r, "host"), (int) number(r, "port"))
            .authenticate(new AuthenticationContext(text(r, "user"), text(r, "password").toCharArray(), null));
        share = (DiskShare) session.connectShare(text(r, "share"));
    }

    private File open(String path, AccessMask access, SMB2CreateDisposition how) {
        return share.openFile(path, EnumSet.of(access), null, SMB2ShareAccess.ALL, how, null);
    }

    @Override
    Map<String, Object> ask(String op, Map<String, Object> r) throws Exception {
        String path = r.containsKey("path") ? text(r, "path").replace('/', '\\') : null;
        switch (op) {
            case "put":
                try (File f = open(path, AccessMask.GENERIC_WRITE, SMB2CreateDisposition.FILE_OVERWRITE_IF);
                        OutputStream to = f.getOutputStream()) {
                    Files.copy(Paths.get(text(r, "local")), to);
                }
                return null;
            case "get":
                try (File f = open(path, AccessMask.GENERIC_READ, SMB2CreateDisposition.FILE_OPEN);
                        InputStream from = f.getInputStream(); OutputStream to = new FileOutputStream(text(r, "local"))) {
                    from.transferTo(to);
                }
                return null;
            case "write_at":
                try (File f = open(path, AccessMask.GENERIC_WRITE, SMB2CreateDisposition.FILE_OPEN)) {
                    f.write(Files.readAllBytes(Paths.get(text(r, "local"))), number(r, "offset"));
                }
                return null;
            case "truncate":
                try (File f = open(path, AccessMask.GENERIC_WRITE, SMB2CreateDisposition.FILE_OPEN)) {
                    f.setLength(number(r, "size"));
                }
                return null;
            case "list": {
                List<String> names = new ArrayList<>();
                for (FileIdBothDirectoryInformation i : share.list(path)) {
                    names.add(i.getFileName());
                }
                return Map.of("names", names);
            }
            case "stat": {
                FileAllInformation i = share.getFileInformation(path);
                return Map.of("size", i.getStandardInformation().getEndOfFile(), "directory", i.getStandardInformation().isDirectory(),
                    "mtime", i.getBasicInformation().getLastWriteTime().toEpochMillis() / 1000);
            }
            case "mkdir":
                share.mkdir(path);
                return null;
            case "rmdir":
                share.rmdir(path, false);
                return null;
            case "remove_all":
                share.rmdir(path, true);
                return null;
            case "delete":
                share.rm(path);
                return null;
            case "rename":
                try (DiskEntry e = share.open(text(r, "old").replace('/', '\\'), EnumSet.of(AccessMask.DELETE), null, SMB2ShareAccess.ALL,
                        SMB2CreateDisposition.FILE_OPEN, EnumSet.noneOf(SMB2CreateOptions.class))) {
                    e.rename(text(r, "new").replace('/', '\\'), true);
                }
                return null;
            case "set_time":
                return basic(path, FileTime.ofEpoch(number(r, "mtime"), TimeUnit.SECONDS), 0);
            case "set_attributes":
                return basic(path, FileBasicInformation.DONT_SET, FileAttributes.FILE_ATTRIBUTE_HIDDEN.getValue());
            case "space":
                return Map.of("total", share.getShareInformation().getTotalSpace(), "free", share.getShareInformation().getCallerFreeSpace());
            case "shares": {
                List<String> names = new ArrayList<>();
                for (NetShareInfo0 i : new ServerService(SMBTransportFactories.SRVSVC.getTransport(session)).getShares0()) {
                    names.add(i.getNetName());
                }
                return Map.of("names", names);
            }
            case "acl":
                return Map.of("acl", share.getSecurityInfo(path, Set.of(com.hierynomus.msdtyp.SecurityInformation.OWNER_SECURITY_INFORMATION,
                    com.hierynomus.msdtyp.SecurityInformation.DACL_SECURITY_INFORMATION)).toString());
            default:
                throw new NotOffered(op);
        }
    }

    private Map<String, Object> basic(String path, FileTime written, long attributes) {
        FileTime keep = FileBasicInformation.DONT_SET;
        share.setFileInformation(path, new FileBasicInformation(keep, keep, written, keep, attributes));
        return null;
    }
}
