// The adapter of SMBLibrary: requests as JSON lines on standard input, answers on standard output.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net;
using System.Runtime.Serialization.Json;
using System.Text;
using System.Threading;
using System.Xml;
using System.Xml.Linq;
using SMBLibrary;
using SMBLibrary.Client;

/// The client's API has no such operation.
class NotOffered : Exception
{
    public NotOffered(string what) : base("no " + what) { }
}

/// SMB2Client keeps its port to classes that derive from it. It speaks 3.0.2 at most unless 3.1.1 is asked for.
class Client : SMB2Client
{
    public Client() : base(8000) { }

    public bool Connect(IPAddress address, int port)
    {
        return Connect(address, SMBTransportType.DirectTCPTransport, port);
    }
}

/// One connection with one tree. The library has no calls of several threads on one connection.
class Share
{
    const ShareAccess All = ShareAccess.Read | ShareAccess.Write | ShareAccess.Delete;
    const AccessMask Read = AccessMask.GENERIC_READ | AccessMask.SYNCHRONIZE;
    const AccessMask Write = AccessMask.GENERIC_WRITE | AccessMask.SYNCHRONIZE;
    readonly Client client;
    readonly ISMBFileStore store;

    public Share(XElement r)
    {
        string share = Text(r, "share");
        NTStatus status;
        // An answer to NEGOTIATE that comes before the library's own send returns makes it use message id 0 twice: once more then.
        for (int tries = 1; ; tries++)
        {
            client = new Client();
            if (!client.Connect(IPAddress.Parse(Text(r, "host")), (int)Number(r, "port")))
                throw new IOException("no connection");
            status = client.Login("", Text(r, "user"), Text(r, "password"));
            if (status != NTStatus.STATUS_INVALID_SMB || tries == 5)
                break;
        }
        Check(status);
        store = client.TreeConnect(share, out status);
        Check(status);
    }

    public static string Text(XElement r, string field) { return r.Element(field).Value; }
    public static long Number(XElement r, string field) { return long.Parse(r.Element(field).Value, CultureInfo.InvariantCulture); }

    static void Check(NTStatus status)
    {
        if (status != NTStatus.STATUS_SUCCESS)
            throw new IOException(status.ToString());
    }

    /// Opens, does, closes; the close counts too.
    void With(string path, AccessMask access, CreateDisposition how, CreateOptions options, Action<object> what)
    {
        object handle;
        FileStatus done;
        Check(store.CreateFile(out handle, out done, path, access, 0, All, how, options, null));
        try { what(handle); }
        catch { if (client.IsConnected) store.CloseFile(handle); throw; }
        Check(store.CloseFile(handle));
    }

    void WithFile(string path, AccessMask access, CreateDisposition how, Action<object> what)
    {
        With(path, access, how, CreateOptions.FILE_NON_DIRECTORY_FILE, what);
    }

    void WriteAll(object handle, byte[] data, long at)
    {
        for (int done = 0; done < data.Length;)
        {
            var part = new byte[Math.Min(data.Length - done, (int)store.MaxWriteSize)];
            Array.Copy(data, done, part, 0, part.Length);
            int count;
            Check(store.WriteFile(out count, handle, at + done, part));
            done += count;
        }
    }

    public void Put(string local, string path)
    {
        WithFile(path, Write, CreateDisposition.FILE_OVERWRITE_IF, h => WriteAll(h, File.ReadAllBytes(local), 0));
    }

    public void Get(string path, string local)
    {
        using (var to = File.Create(local))
            WithFile(path, Read, CreateDisposition.FILE_OPEN, h => {
                for (;;)
                {
                    byte[] data;
                    NTStatus status = store.ReadFile(out data, h, to.Position, (int)store.MaxReadSize);
                    if (status == NTStatus.STATUS_END_OF_FILE)
                        return;
                    Check(status);
                    to.Write(data, 0, data.Length);
                }
            });
    }

    List<FileDirectoryInformation> List(string path)
    {
        List<QueryDirectoryFileInformation> found = null;
        With(path, Read, CreateDisposition.FILE_OPEN, CreateOptions.FILE_DIRECTORY_FILE, h => {
            NTStatus status = store.QueryDirectory(out found, h, "*", FileInformationClass.FileDirectoryInformation);
            if (status != NTStatus.STATUS_NO_MORE_FILES)
                Check(status);
        });
        return found.Cast<FileDirectoryInformation>().Where(e => e.FileName != "." && e.FileName != "..").ToList();
    }

    void Remove(string path, CreateOptions kind)
    {
        With(path, AccessMask.DELETE | AccessMask.SYNCHRONIZE, CreateDisposition.FILE_OPEN, kind,
            h => Check(store.SetFileInformation(h, new FileDispositionInformation { DeletePending = true })));
    }

    void RemoveAll(string path)
    {
        foreach (var e in List(path))
        {
            string inner = path + "\\" + e.FileName;
            if ((e.FileAttributes & SMBLibrary.FileAttributes.Directory) != 0) RemoveAll(inner);
            else Remove(inner, CreateOptions.FILE_NON_DIRECTORY_FILE);
        }
        Remove(path, CreateOptions.FILE_DIRECTORY_FILE);
    }

    void SetBasic(string path, FileBasicInformation to)
    {
        With(path, AccessMask.GENERIC_WRITE, CreateDisposition.FILE_OPEN, 0, h => Check(store.SetFileInformation(h, to)));
    }

    static string Sid(SID s)
    {
        long authority = s.IdentifierAuthority.Aggregate(0L, (sum, b) => sum << 8 | b);
        return "S-" + s.Revision + "-" + authority + string.Concat(s.SubAuthority.Select(n => "-" + n));
    }

    /// Every operation but connect and parallel.
    public string Ask(string op, XElement r)
    {
        string path = r.Element("path") == null ? null : Text(r, "path").Replace('/', '\\');
        switch (op)
        {
            case "put": Put(Text(r, "local"), path); return "{}";
            case "get": Get(path, Text(r, "local")); return "{}";
            case "write_at":
                WithFile(path, Write, CreateDisposition.FILE_OPEN, h => WriteAll(h, File.ReadAllBytes(Text(r, "local")), Number(r, "offset")));
                return "{}";
            case "truncate":
                WithFile(path, Write, CreateDisposition.FILE_OPEN,
                    h => Check(store.SetFileInformation(h, new FileEndOfFileInformation { EndOfFile = Number(r, "size") })));
                return "{}";
            case "list": return "{\"names\": " + Json.Of(List(path).Select(e => e.FileName)) + "}";
            case "stat":
            {
                FileInformation got = null;
                With(path, AccessMask.GENERIC_READ, CreateDisposition.FILE_OPEN, 0,
                    h => Check(store.GetFileInformation(out got, h, FileInformationClass.FileNetworkOpenInformation)));
                var i = (FileNetworkOpenInformation)got;
                long seconds = (i.LastWriteTime.Value.ToFileTimeUtc() - 116444736000000000) / 10000000;
                bool directory = (i.FileAttributes & SMBLibrary.FileAttributes.Directory) != 0;
                return "{\"size\": " + i.EndOfFile + ", \"directory\": " + (directory ? "true" : "false") + ", \"mtime\": " + seconds + "}";
            }
            case "mkdir":
                With(path, Read, CreateDisposition.FILE_CREATE, CreateOptions.FILE_DIRECTORY_FILE, h => { });
                return "{}";
            case "rmdir": Remove(path, CreateOptions.FILE_DIRECTORY_FILE); return "{}";
            case "delete": Remove(path, CreateOptions.FILE_NON_DIRECTORY_FILE); return "{}";
            case "remove_all": RemoveAll(path); return "{}";
            case "rename":
                With(Text(r, "old").Replace('/', '\\'), AccessMask.DELETE | AccessMask.SYNCHRONIZE, CreateDisposition.FILE_OPEN, 0,
                    h => Check(store.SetFileInformation(h,
                        new FileRenameInformationType2 { ReplaceIfExists = true, FileName = Text(r, "new").Replace('/', '\\') })));
                return "{}";
            case "set_time":
                SetBasic(path, new FileBasicInformation { LastWriteTime = DateTime.FromFileTimeUtc(Number(r, "mtime") * 10000000 + 116444736000000000) });
                return "{}";
            case "set_attributes":
                SetBasic(path, new FileBasicInformation { FileAttributes = SMBLibrary.FileAttributes.Hidden });
                return "{}";
            case "space":
            {
                FileSystemInformation got;
                Check(store.GetFileSystemInformation(out got, FileSystemInformationClass.FileFsFullSizeInformation));
                var i = (FileFsFullSizeInformation)got;
                long unit = (long)i.SectorsPerAllocationUnit * i.BytesPerSector;
                return "{\"total\": " + i.TotalAllocationUnits * unit + ", \"free\": " + i.CallerAvailableAllocationUnits * unit + "}";
            }
            case "shares":
            {
                NTStatus status;
                List<string> names = client.ListShares(out status);
                Check(status);
                return "{\"names\": " + Json.Of(names) + "}";
            }
            case "acl":
            {
                SecurityDescriptor got = null;
                With(path, AccessMask.READ_CONTROL, CreateDisposition.FILE_OPEN, 0, h => Check(store.GetSecurityInformation(out got, h,
                    SecurityInformation.OWNER_SECURITY_INFORMATION | SecurityInformation.DACL_SECURITY_INFORMATION)));
                return "{\"acl\": " + Json.Of("owner " + Sid(got.OwnerSid) + ", entries " + got.Dacl.Count) + "}";
            }
            default: throw new NotOffered(op);
        }
    }
}

static class Json
{
    public static string Of(string s)
    {
        var out_ = new StringBuilder("\"");
        foreach (char c in s)
            out_.Append(c == '"' || c == '\\' || c < ' ' || c > '~' ? "\\u" + ((int)c).ToString("x4") : c.ToString());
        return out_.Append('"').ToString();
    }

    public static string Of(IEnumerable<string> all) { return "[" + string.Join(", ", all.Select(Of)) + "]"; }
}

static class Program
{
    static XElement connect;
    static Share share;

    /// Transfers at the same time, each on a connection of its own.
    static void Parallel(XElement r)
    {
        var failed = new List<Exception>();
        var threads = new List<Thread>();
        Action<Action<Share>> start = what => {
            var t = new Thread(() => {
                try { what(new Share(connect)); }
                catch (Exception e) { lock (failed) failed.Add(e); }
            });
            t.Start();
            threads.Add(t);
        };
        foreach (var pair in r.Element("puts").Elements().Select(p => p.Elements().Select(e => e.Value).ToArray()))
            start(s => s.Put(pair[0], pair[1].Replace('/', '\\')));
        foreach (var pair in r.Element("gets").Elements().Select(p => p.Elements().Select(e => e.Value).ToArray()))
            start(s => s.Get(pair[0].Replace('/', '\\'), pair[1]));
        threads.ForEach(t => t.Join());
        if (failed.Count > 0)
            throw failed[0];
    }

    static string Answer(string line)
    {
        try
        {
            XElement r;
            using (var reader = JsonReaderWriterFactory.CreateJsonReader(Encoding.UTF8.GetBytes(line), XmlDictionaryReaderQuotas.Max))
                r = XElement.Load(reader);
            string op = Share.Text(r, "op");
            if (op == "connect")
            {
                connect = r;
                share = new Share(r);
                return "{}";
            }
            if (op == "parallel")
            {
                Parallel(r);
                return "{}";
            }
            return share.Ask(op, r);
        }
        catch (NotOffered e)
        {
            return "{\"na\": " + Json.Of(e.Message) + "}";
        }
        catch (Exception e)
        {
            Console.Error.WriteLine(e);
            return "{\"error\": " + Json.Of(e.GetType().Name + ": " + e.Message) + "}";
        }
    }

    static void Main()
    {
        var input = new StreamReader(Console.OpenStandardInput(), new UTF8Encoding(false));
        var output = new StreamWriter(Console.OpenStandardOutput(), new UTF8Encoding(false)) { AutoFlush = true };
        for (string line; (line = input.ReadLine()) != null;)
            output.WriteLine(Answer(line));
        Environment.Exit(0);
    }
}
