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
