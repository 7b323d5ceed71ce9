//! Packs the console's files and writes their table, so that they are part of the binary.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("console");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let out = PathBuf::from(env("OUT_DIR"));
    let mut table = String::from("&[\n");
    for (number, file) in files.iter().enumerate() {
        let name = file.strip_prefix(&root).map_err(io::Error::other)?.to_string_lossy().into_owned();
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&fs::read(file)?)?;
        let at = out.join(format!("{number}.gz"));
        fs::write(&at, packed.finish()?)?;
        table += &format!("    ({name:?}, include_bytes!({:?})),\n", at.to_string_lossy());
    }
    table += "]\n";
    fs::write(out.join("console.rs"), table)
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Hidden files, such as those that editors leave, do not belong to the console.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            println!("cargo:rerun-if-changed={}", path.display());
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
