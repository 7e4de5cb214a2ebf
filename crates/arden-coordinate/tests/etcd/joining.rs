//! Nodes that join at the same moment.

use super::*;

#[test]
fn a_name_is_one_nodes_whoever_joins_at_the_same_moment() {
    let Some(server) = Server::start() else { return };
    let first = server.directory("a");
    let a = membership::init(&first, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    let member = Member::connect(first.path(), a.clone()).unwrap();
    let join = |directory: String, name: String| {
        let token = member.new_token().unwrap().token;
        membership::join(&server.directory(&directory), std::slice::from_ref(&server.url), None, &token, &name)
    };
    for round in 0..40 {
        let outcomes = thread::scope(|scope| {
            let joins = [0, 1].map(|n| scope.spawn(move || join(format!("{round}-{n}"), format!("twin{round}"))));
            joins.map(|j| j.join().unwrap())
        });
        let ([Ok(_), Err(error)] | [Err(error), Ok(_)]) = &outcomes else { panic!("round {round}: {outcomes:?}") };
        assert!(error.kind == ErrorKind::Conflict && error.error.contains("has a node twin"), "{error}");
    }
    let error = join("case".into(), "TWIN0".into()).unwrap_err();
    assert!(error.kind == ErrorKind::Conflict && error.error.contains("has a node twin0"), "{error}");
    assert!(join("case".into(), "A".into()).is_err());
    let etcd = Etcd::start(&a.etcd, None).unwrap();
    let nodes = etcd.read_now(&a.names().nodes(), &a.names().cluster()).unwrap();
    assert_eq!(nodes.pairs.len(), 42, "the nodes and the cluster");
}

#[test]
fn a_cluster_without_a_lease_is_neither_joined_nor_served() {
    let Some(server) = Server::start() else { return };
    let first = server.directory("a");
    let mut a = membership::init(&first, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    let member = Member::connect(first.path(), a.clone()).unwrap();
    let token = member.new_token().unwrap().token;
    a.cluster.lease_seconds = 0;
    let etcd = Etcd::start(&a.etcd, None).unwrap();
    etcd.put_now(&a.names().cluster(), &serde_json::to_vec(&a.cluster).unwrap()).unwrap();
    let urls = std::slice::from_ref(&server.url);
    let error = membership::join(&server.directory("b"), urls, None, &token, "b").unwrap_err();
    let says = "a lease of 0 seconds is out of range";
    assert!(error.kind == ErrorKind::Conflict && error.error.contains(says), "{error}");
    // A node that joined it before that was looked at.
    std::fs::write(first.path().join("cluster.json"), serde_json::to_vec(&a).unwrap()).unwrap();
    let error = membership::load(first.path()).unwrap_err();
    assert!(error.kind == ErrorKind::Conflict && error.error.contains(says), "{error}");
}
