//! read-rate ADDRESS:PORT SHARE FOLDER FILES CONNECTIONS: reads FILES small files, each by the crate smb2's `read_file` as it is: a
//! compound of CREATE, a READ of the largest length that the server allows, and CLOSE. With `write` behind, makes them first.
//! Prints the seconds.

use std::time::Instant;

use smb2::{ClientConfig, SmbClient, Tree};

const FILE_BYTES: usize = 16 * 1024;

async fn connect(address: &str, share: &str) -> (SmbClient, Tree) {
    let config = ClientConfig { addr: address.into(), username: "tester".into(), password: "pw".into(), ..Default::default() };
    let mut client = SmbClient::connect(config).await.expect("a connection");
    let tree = client.connect_share(share).await.expect("the share");
    (client, tree)
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, share, folder, files, connections, rest @ ..] = &args[..] else { panic!("see the first lines") };
    let (files, connections): (usize, usize) = (files.parse().unwrap(), connections.parse().unwrap());
    let name = |i: usize| format!("{folder}/{i}");
    if !rest.is_empty() {
        let (mut client, tree) = connect(address, share).await;
        client.create_directory(&tree, folder).await.expect("the folder");
        for i in 0..files {
            client.write_file(&tree, &name(i), &vec![i as u8; FILE_BYTES]).await.expect("a file");
        }
    }
    let mut tasks = Vec::new();
    let mut ready = Vec::new();
    for _ in 0..connections {
        ready.push(connect(address, share).await);
    }
    let began = Instant::now();
    for (n, (mut client, mut tree)) in ready.into_iter().enumerate() {
        let names: Vec<String> = (n..files).step_by(connections).map(name).collect();
        tasks.push(tokio::spawn(async move {
            for (i, name) in names.iter().enumerate() {
                let data = client.read_file(&mut tree, name).await.expect("a file");
                let want = (n + i * connections) as u8;
                assert!(data.len() == FILE_BYTES && data.iter().all(|b| *b == want), "{name}");
            }
        }));
    }
    for t in tasks {
        t.await.expect("a connection's reads");
    }
    println!("{:.4}", began.elapsed().as_secs_f64());
}
