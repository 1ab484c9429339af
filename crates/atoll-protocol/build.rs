//! Turns the `.proto` files into Rust without `protoc`: `protox` parses them,
//! `connectrpc-build` writes messages and service traits.

use std::error::Error;
use std::path::PathBuf;

const FILES: &[&str] = &["filesystem/filesystem.proto", "process/process.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = PathBuf::from(std::env::var("OUT_DIR")?).join("envd.binpb");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(FILES)?;
    std::fs::write(&descriptors, compiler.encode_file_descriptor_set())?;
    connectrpc_build::Config::new()
        .descriptor_set(descriptors)
        .files(FILES)
        .client_feature_name("generated-client")
        .emit_rerun_directives(false)
        .include_file("_connectrpc.rs")
        .compile()?;
    Ok(())
}
