//! The adapter of the crate `smb2`: its whole-file calls, its streams and its batches.

use std::time::{Duration, UNIX_EPOCH};

use arden_clients::{Answer, Client, Value, json, not_offered, number, pairs, serve, text};
use smb2::{ClientConfig, SmbClient, Tree};

struct Smb2 {
    client: SmbClient,
    tree: Tree,
}

impl Smb2 {
    async fn put(&mut self, local: &str, path: &str) -> Answer {
        let data = std::fs::read(local)?;
        self.client.write_file_pipelined(&self.tree, path, &data).await?;
        Ok(json!({}))
    }

    async fn get(&mut self, path: &str, local: &str) -> Answer {
        std::fs::write(local, self.client.read_file_pipelined(&mut self.tree, path).await?)?;
        Ok(json!({}))
    }

    async fn parallel(&mut self, request: &Value) -> Answer {
        let mut tasks = Vec::new();
        for (local, path) in pairs(request, "puts") {
            let (mut connection, tree) = (self.client.connection_for(&self.tree)?, self.tree.clone());
            tasks.push(tokio::spawn(async move {
                let data = std::fs::read(local)?;
                tree.write_file_pipelined(&mut connection, &path, &data).await.map_err(std::io::Error::other)?;
                Ok::<(), std::io::Error>(())
            }));
        }
        for (path, local) in pairs(request, "gets") {
            let (mut connection, tree) = (self.client.connection_for(&self.tree)?, self.tree.clone());
            tasks.push(tokio::spawn(async move {
                let data = tree.read_file_pipelined(&mut connection, &path).await.map_err(std::io::Error::other)?;
                std::fs::write(local, data)
            }));
        }
        for t in tasks {
            t.await??;
        }
        Ok(json!({}))
    }
}

impl Client for Smb2 {
    async fn connect(r: &Value) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut client = SmbClient::connect(ClientConfig {
            addr: format!("{}:{}", text(r, "host"), number(r, "port")),
            timeout: Duration::from_secs(5),
            username: text(r, "user").to_owned(),
            password: text(r, "password").to_owned(),
            ..Default::default()
        })
        .await?;
        let tree = client.connect_share(text(r, "share")).await?;
        Ok(Smb2 { client, tree })
    }

    async fn ask(&mut self, op: &str, r: &Value) -> Answer {
        let path = text(r, "path");
        match op {
            "put" => return self.put(text(r, "local"), path).await,
            "get" => return self.get(path, text(r, "local")).await,
            "parallel" => return self.parallel(r).await,
            "write_at" => {
                let mut writer = self.client.create_file_writer_at(&self.tree, path, number(r, "offset")).await?;
                writer.write_chunk(&std::fs::read(text(r, "local"))?).await?;
                writer.finish().await?;
            }
            "mkdir" => self.client.create_directory(&self.tree, path).await?,
            "rmdir" => self.client.delete_directory(&self.tree, path).await?,
            "delete" => self.client.delete_file(&self.tree, path).await?,
            "rename" => self.client.rename(&self.tree, text(r, "old"), text(r, "new")).await?,
            "set_time" => {
                let time = UNIX_EPOCH + Duration::from_secs(number(r, "mtime"));
                self.client.set_times(&self.tree, path, smb2::FileTimes::new().set_modified(time)).await?;
            }
            "set_attributes" => {
                let times = smb2::FileTimes::new().set_attributes(smb2::FileAttributes(smb2::FileAttributes::HIDDEN));
                self.client.set_times(&self.tree, path, times).await?;
            }
            "list" => {
                let entries = self.client.list_directory(&mut self.tree, path).await?;
                return Ok(json!({ "names": entries.into_iter().map(|e| e.name).collect::<Vec<_>>() }));
            }
            "stat" => {
                let info = self.client.stat(&mut self.tree, path).await?;
                let mtime = info.modified.0 as i64 / 10_000_000 - 11_644_473_600;
                return Ok(json!({ "size": info.size, "directory": info.is_directory, "mtime": mtime }));
            }
            "space" => {
                let info = self.client.fs_info(&mut self.tree).await?;
                return Ok(json!({ "total": info.total_bytes, "free": info.free_bytes }));
            }
            "shares" => {
                let shares = self.client.list_shares().await?;
                return Ok(json!({ "names": shares.into_iter().map(|s| s.name).collect::<Vec<_>>() }));
            }
            other => return not_offered(other),
        }
        Ok(json!({}))
    }
}

#[tokio::main]
async fn main() {
    serve::<Smb2>().await;
}
