//! The module file under test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub(crate) fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let file = match env::var_os("REDIS_LOCK_MODULE") {
            Some(file) => file.into(),
            None => build(),
        };
        // A server leaves the directory in which a relative path would mean something.
        file.canonicalize()
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    })
}

/// Has cargo build the module, because `cargo test` does not: a library that is only a `cdylib`
/// cannot be linked into a test, so it is none of a test's dependencies.
fn build() -> PathBuf {
    cargo_build(&["--lib"]).join("libredis_lock.so")
}

/// Has cargo build something in the profile of the running test; the directory of what was built.
pub(crate) fn cargo_build(what: &[&str]) -> PathBuf {
    // TARGET/PROFILE/deps/TEST
    let test = env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).expect("a profile's directory");
    let target = profile.parent().expect("a target directory");
    let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .arg("--profile")
        .arg(match profile.file_name() {
            Some(name) if name != "debug" => name,
            _ => "dev".as_ref(),
        })
        .args(what)
        .status()
        .expect("cargo runs");
    assert!(built.success(), "{what:?} does not build");
    profile.to_owned()
}
