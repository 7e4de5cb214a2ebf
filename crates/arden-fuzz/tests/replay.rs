//! Replays the checked-in corpora, and mutates them for a moment from a fixed seed: what a fuzzer found once
//! stays found, and every ordinary test run is a little fuzzing.

#[test]
fn every_target_has_a_corpus_and_survives_it() {
    for (target, entry) in arden_fuzz::TARGETS {
        let entries = arden_fuzz::corpus(target);
        assert!(!entries.is_empty(), "no corpus for {target}");
        for (path, data) in entries {
            eprintln!("{}", path.display());
            entry(&data);
        }
    }
}

#[test]
fn every_target_survives_mutations() {
    for (target, _) in arden_fuzz::TARGETS {
        // The whole server has more to it than a parser.
        let seconds = if *target == "connection" { 1.0 } else { 0.2 };
        eprintln!("{target}: {} rounds", arden_fuzz::mutations(target, target.len() as u64, seconds));
    }
}
