//! A program of examples/python, run with the client that `scripts/get-clients` has set up.

use std::path::Path;
use std::process::Command;

use super::Server;

pub(crate) fn python(server: &Server, program: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("target/clients/python/bin/python"));
    command
        .arg(root.join("examples/python").join(program))
        .env("REDIS_PORT", server.port().to_string())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
