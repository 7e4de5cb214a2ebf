//! The adapter of the crate `smb`: opens, block copies in parallel, directory streams, and information by class.

use std::{fs::File, os::unix::fs::FileExt, str::FromStr, sync::Arc, time::Duration};

use arden_clients::{Answer, Client, Value, json, not_offered, number, pairs, serve, text};
use futures_util::StreamExt;
use smb::{
    AdditionalInfo, ClientConfig, CreateDisposition, CreateOptions, Directory, FileAccessMask, FileAttributes,
    FileBasicInformation, FileCreateArgs, FileDispositionInformation, FileFsFullSizeInformation,
    FileIdBothDirectoryInformation, FileNetworkOpenInformation, FileRenameInformation, Resource, UncPath,
    resource::{SetLen, WriteAt, WriteAtChannel, block_copy},
    sync_helpers::Mutex,
};

type Error = Box<dyn std::error::Error + Send + Sync>;
const JOBS: usize = 4;

struct Smb {
    client: Arc<smb::Client>,
    server: String,
    share: UncPath,
}

/// A file on this machine, written before a call returns. Of tokio's, a write is still under way when `block_copy` has let go of it.
struct Local(File);

impl WriteAtChannel for Local {
    async fn write_at_channel(&self, buf: &[u8], offset: u64, _channel: Option<u32>) -> smb::Result<usize> {
        self.0.write_all_at(buf, offset)?;
        Ok(buf.len())
    }
}

impl SetLen for Local {
    async fn set_len(&self, len: u64) -> smb::Result<()> {
        Ok(self.0.set_len(len)?)
    }
}

fn all() -> FileAccessMask {
    FileAccessMask::new().with_generic_read(true).with_generic_write(true)
}

impl Smb {
    fn unc(&self, path: &str) -> UncPath {
        self.share.clone().with_path(&path.replace('/', "\\"))
    }

    async fn open(&self, path: &str, access: FileAccessMask) -> Result<Resource, Error> {
        Ok(self.client.create_file(&self.unc(path), &FileCreateArgs::make_open_existing(access)).await?)
    }

    async fn put(client: Arc<smb::Client>, to: UncPath, local: String) -> Result<(), Error> {
        let args = FileCreateArgs {
            disposition: CreateDisposition::OverwriteIf,
            attributes: FileAttributes::new(),
            options: CreateOptions::new(),
            desired_access: all(),
        };
        let file = client.create_file(&to, &args).await?.unwrap_file();
        if std::fs::metadata(&local)?.len() > 0 {
            block_copy(Mutex::new(tokio::fs::File::open(&local).await?), file, JOBS).await?;
        } else {
            file.close().await?;
        }
        Ok(())
    }

    async fn get(client: Arc<smb::Client>, from: UncPath, local: String) -> Result<(), Error> {
        let args = FileCreateArgs::make_open_existing(FileAccessMask::new().with_generic_read(true));
        let file = client.create_file(&from, &args).await?.unwrap_file();
        let to = File::create(&local)?;
        if smb::GetLen::get_len(&file).await? > 0 {
            block_copy(file, Local(to), JOBS).await?;
        }
        Ok(())
    }

    async fn delete(&self, path: &str, directory: bool) -> Result<(), Error> {
        let access = FileAccessMask::new().with_generic_read(true).with_delete(true);
        let gone = FileDispositionInformation { delete_pending: true.into() };
        match (self.open(path, access).await?, directory) {
            (Resource::File(f), false) => {
                f.set_info(gone).await?;
                f.close().await?;
            }
            (Resource::Directory(d), true) => {
                d.set_info(gone).await?;
                d.close().await?;
            }
            _ => return Err("of another kind".into()),
        }
        Ok(())
    }

    async fn set_basic(&self, path: &str, mtime: u64, attributes: FileAttributes) -> Result<(), Error> {
        let file = self.open(path, all()).await?.unwrap_file();
        file.set_info(FileBasicInformation {
            creation_time: 0.into(),
            last_access_time: 0.into(),
            last_write_time: mtime.into(),
            change_time: 0.into(),
            file_attributes: attributes,
        })
        .await?;
        file.close().await?;
        Ok(())
    }

    async fn list(&self, path: &str) -> Answer {
        let directory: Arc<Directory> =
            Arc::new(self.open(path, FileAccessMask::new().with_generic_read(true)).await?.unwrap_dir());
        let mut names = Vec::new();
        {
            let mut entries = Directory::query::<FileIdBothDirectoryInformation>(&directory, "*").await?;
            while let Some(e) = entries.next().await {
                names.push(e?.file_name.to_string());
            }
        }
        directory.close().await?;
        Ok(json!({ "names": names }))
    }

    async fn stat(&self, path: &str) -> Answer {
        let access = FileAccessMask::new().with_file_read_attributes(true);
        let handle = self.open(path, access).await?;
        let info: FileNetworkOpenInformation = match &handle {
            Resource::File(f) => f.query_info().await?,
            Resource::Directory(d) => d.query_info().await?,
            _ => return Err("a pipe".into()),
        };
        let mtime = *info.last_write_time as i64 / 10_000_000 - 11_644_473_600;
        Ok(json!({ "size": info.end_of_file, "directory": info.file_attributes.directory(), "mtime": mtime }))
    }

    async fn parallel(&self, r: &Value) -> Answer {
        let mut tasks = Vec::new();
        for (local, path) in pairs(r, "puts") {
            tasks.push(tokio::spawn(Smb::put(self.client.clone(), self.unc(&path), local)));
        }
        for (path, local) in pairs(r, "gets") {
            tasks.push(tokio::spawn(Smb::get(self.client.clone(), self.unc(&path), local)));
        }
        for t in tasks {
            t.await??;
        }
        Ok(json!({}))
    }
}

impl Client for Smb {
    async fn connect(r: &Value) -> Result<Self, Error> {
        let mut config = ClientConfig::default();
        config.connection.port = Some(number(r, "port") as u16);
        config.connection.timeout = Some(Duration::from_secs(20));
        config.connection.auth_methods.ntlm = true;
        config.connection.auth_methods.kerberos = false;
        let client = Arc::new(smb::Client::new(config));
        let server = text(r, "host").to_owned();
        let share = UncPath::from_str(&format!(r"\\{server}\{}", text(r, "share")))?;
        client.share_connect(&share, text(r, "user"), text(r, "password").to_owned()).await?;
        client.ipc_connect(&server, text(r, "user"), text(r, "password").to_owned()).await?;
        Ok(Smb { client, server, share })
    }

    async fn ask(&mut self, op: &str, r: &Value) -> Answer {
        let path = text(r, "path");
        match op {
            "put" => Smb::put(self.client.clone(), self.unc(path), text(r, "local").to_owned()).await?,
            "get" => Smb::get(self.client.clone(), self.unc(path), text(r, "local").to_owned()).await?,
            "parallel" => return self.parallel(r).await,
            "list" => return self.list(path).await,
            "stat" => return self.stat(path).await,
            "write_at" => {
                let file = self.open(path, all()).await?.unwrap_file();
                file.write_at(&std::fs::read(text(r, "local"))?, number(r, "offset")).await?;
                file.close().await?;
            }
            "truncate" => {
                let file = self.open(path, all()).await?.unwrap_file();
                file.set_len(number(r, "size")).await?;
                file.close().await?;
            }
            "mkdir" => {
                let args = FileCreateArgs::make_create_new(
                    FileAttributes::new().with_directory(true),
                    CreateOptions::new().with_directory_file(true),
                );
                self.client.create_file(&self.unc(path), &args).await?.unwrap_dir().close().await?;
            }
            "rmdir" => self.delete(path, true).await?,
            "delete" => self.delete(path, false).await?,
            "rename" => {
                let access = FileAccessMask::new().with_generic_read(true).with_delete(true);
                let file = self.open(text(r, "old"), access).await?.unwrap_file();
                let new = FileRenameInformation {
                    replace_if_exists: true.into(),
                    root_directory: 0,
                    file_name: text(r, "new").replace('/', "\\").as_str().into(),
                };
                file.set_info(new).await?;
                file.close().await?;
            }
            "set_time" => {
                let ticks = (number(r, "mtime") + 11_644_473_600) * 10_000_000;
                self.set_basic(path, ticks, FileAttributes::new()).await?;
            }
            "set_attributes" => self.set_basic(path, 0, FileAttributes::new().with_hidden(true)).await?,
            "space" => {
                let root = self.open("", FileAccessMask::new().with_generic_read(true)).await?.unwrap_dir();
                let info: FileFsFullSizeInformation = root.query_fs_info().await?;
                root.close().await?;
                let unit = u64::from(info.sectors_per_allocation_unit) * u64::from(info.bytes_per_sector);
                let free = info.caller_available_allocation_units * unit;
                return Ok(json!({ "total": info.total_allocation_units * unit, "free": free }));
            }
            "shares" => {
                let shares = self.client.list_shares(&self.server).await?;
                let names: Vec<String> =
                    shares.iter().map(|s| s.netname.as_ref().map(|n| n.to_string()).unwrap_or_default()).collect();
                return Ok(json!({ "names": names }));
            }
            "acl" => {
                let file = self.open(path, FileAccessMask::new().with_generic_read(true)).await?.unwrap_file();
                let wanted =
                    AdditionalInfo::new().with_owner_security_information(true).with_dacl_security_information(true);
                let descriptor = file.query_security_info(wanted).await?;
                file.close().await?;
                return Ok(json!({ "acl": descriptor.owner_sid.map(|s| s.to_string()) }));
            }
            other => return not_offered(other),
        }
        Ok(json!({}))
    }
}

#[tokio::main]
async fn main() {
    serve::<Smb>().await;
}
