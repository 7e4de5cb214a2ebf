//! Mutates a target's corpus for some seconds from a seed: `soak TARGET SECONDS SEED`. What to run where cargo-fuzz
//! is not at hand; prints the bytes that panic.
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, target, seconds, seed] = &args[..] else { panic!("soak TARGET SECONDS SEED") };
    let rounds = arden_fuzz::mutations(target, seed.parse().expect("a number"), seconds.parse().expect("seconds"));
    println!("{target}: {rounds} rounds");
}
