//! What a node can do that is not one of the cluster any more: nothing, and it learns of it.

use arden_admin::{AdminError, cluster::ClientMove};

use super::*;

fn is_removed(error: &AdminError) -> bool {
    error.kind == ErrorKind::Conflict && error.error.contains("this node was removed from the cluster")
}

impl Two {
    /// Whether the second node learns within this time that it was removed.
    fn learns(&self, within: Duration) -> bool {
        let removed = self.members[1].removed();
        let said = self.runtime.block_on(async { tokio::time::timeout(within, removed).await });
        said.is_ok_and(|error| is_removed(&error))
    }
}

#[test]
fn a_removed_node_changes_nothing() {
    let Some(two) = Two::new() else { return };
    let c = two.join("c", "c");
    let api = two.api(1);
    let change_user = |name: &str| api.state.change(|s| s.add_user(&user(name))).map(drop);
    change_user("before").unwrap();
    // As a daemon that was frozen until its lease had ended: it has not heard of anything.
    two.members[1].leave();
    two.api(0).remove_node("b").unwrap();
    let (etcd, names) = two.etcd();
    let all = || etcd.read_now(&names.all(), &names.cluster()).unwrap().pairs;
    let before = all();
    let client_move = ClientMove { client: "client".into(), to: "a".into() };
    let refused = [
        ("a user", change_user("evil")),
        ("a token", api.new_token().map(drop)),
        ("resume", api.change_node("a", &NodeChange { drained: false }).map(drop)),
        ("drain", api.change_node("c", &NodeChange { drained: true }).map(drop)),
        ("remove", api.remove_node("c")),
        ("a client's move", api.move_client(&client_move).map(drop)),
        ("a name at disks", two.members[1].claim_names(&["nvme:0e".to_string()])),
    ];
    for (what, outcome) in refused {
        assert!(outcome.as_ref().is_err_and(is_removed), "{what}: {outcome:?}");
    }
    assert_eq!(all(), before);
    assert!(two.learns(Duration::from_secs(30)));
    assert_eq!(c.node, 3);
    two.members[0].leave();
}

#[test]
fn a_node_learns_from_the_watch_that_it_was_removed() {
    let Some(two) = Two::new() else { return };
    let (etcd, names) = two.etcd();
    // Another feature level is the same node still, though it changes nothing before it starts again.
    as_an_older_one(&etcd, &names, 2);
    let error = two.members[1].new_token().unwrap_err();
    assert!(error.error.contains("entry in etcd has changed"), "{error}");
    assert!(!two.learns(Duration::from_secs(2)));
    etcd.delete_now(&names.node(2)).unwrap();
    assert!(two.learns(Duration::from_secs(30)));
    two.members.iter().for_each(|m| m.leave());
}

#[test]
fn a_node_whose_entry_has_another_certificate_is_none_of_the_cluster() {
    let Some(two) = Two::new() else { return };
    let (etcd, names) = two.etcd();
    etcd.put_now(&names.node(2), br#"{"name":"b","version":1,"certificate":"00"}"#).unwrap();
    assert!(two.learns(Duration::from_secs(30)));
    two.members.iter().for_each(|m| m.leave());
}
