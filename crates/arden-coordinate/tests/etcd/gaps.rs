//! A node that did not reach etcd for a while.

use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;

/// The way to etcd, which can be shut: connections end, and those that come end at once.
struct Way {
    url: String,
    shut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(url: &str) -> Way {
        let to = url.trim_start_matches("http://").to_string();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let way = Way { url, shut: Arc::default(), open: Arc::default() };
        let (shut, open) = (way.shut.clone(), way.open.clone());
        thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let mut open = open.lock().unwrap();
                let Ok(to) = TcpStream::connect(&to) else { continue };
                if shut.load(Ordering::Relaxed) {
                    continue;
                }
                for (a, b) in [(&from, &to), (&to, &from)] {
                    let (mut a, mut b) = (a.try_clone().unwrap(), b.try_clone().unwrap());
                    open.push(a.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut a, &mut b);
                        let _ = b.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        way
    }

    fn set_shut(&self, shut: bool) {
        self.shut.store(shut, Ordering::Relaxed);
        self.open.lock().unwrap().drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
    }
}

/// It has a new watch then, which tells of what comes, and not of what came before.
#[test]
fn a_node_hears_of_what_was_changed_while_it_had_no_watch() {
    let Some(server) = Server::start() else { return };
    let way = Way::to(&server.url);
    let (first, second) = (server.directory("a"), server.directory("b"));
    let new = NewCluster { etcd: vec![way.url.clone()], ..server.cluster() };
    let a = membership::init(&first, &new, |_| Ok(Vec::new())).unwrap();
    let a = Member::connect(first.path(), a).unwrap();
    let token = a.new_token().unwrap().token;
    let b = membership::join(&second, std::slice::from_ref(&server.url), None, &token, "b").unwrap();
    let b = Member::connect(second.path(), b).unwrap();
    let there = State::on(b.state_store()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _listener = runtime.block_on(listen(&a));
    let until = |what: &str, is: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    until("it has a lease", &|| a.has_lease());
    for (name, keeps_lease) in [("eve", true), ("mallory", false)] {
        let mut heard = a.state_store().watch();
        // Its own commits and reads are over by then.
        thread::sleep(Duration::from_millis(500));
        way.set_shut(true);
        heard.borrow_and_update();
        there.change(|s| s.add_user(&user(name))).unwrap();
        until("its lease ends", &|| keeps_lease || !a.has_lease());
        assert!(!heard.has_changed().unwrap());
        way.set_shut(false);
        until("it looks", &|| heard.has_changed().unwrap());
        let state = State::on(a.state_store()).unwrap();
        assert!(state.snapshot().user(name).is_ok());
        until("it has a lease again", &|| a.has_lease());
    }
    a.leave();
}
