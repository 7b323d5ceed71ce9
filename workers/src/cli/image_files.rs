//! The images of a prompt as files, for a CLI that takes images by their paths.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::prompt::{Part, Prompt};
use super::shared::Shared;

/// Files that only the user can read. They are removed with this value.
#[derive(Default)]
pub(super) struct ImageFiles {
    folder: Option<PathBuf>,
    pub(super) paths: Vec<String>,
}

impl ImageFiles {
    /// Fails with the reason to report to the client.
    pub(super) fn write(shared: &Shared, prompt: &Prompt) -> Result<ImageFiles, String> {
        let mut files = ImageFiles::default();
        for part in &prompt.parts {
            if let Part::Image { mime_type, data } = part {
                files.add(shared, mime_type, data)?;
            }
        }
        Ok(files)
    }

    fn add(&mut self, shared: &Shared, mime_type: &str, data: &str) -> Result<(), String> {
        let bytes = STANDARD.decode(data).map_err(|_| "an image of the prompt is no base64".to_owned())?;
        let fault = |error: std::io::Error| format!("an image of the prompt was not written: {error}");
        let folder = match &self.folder {
            Some(folder) => folder,
            None => {
                let parent = shared.folder.as_ref().ok_or("there is no folder for the images of a prompt")?;
                let folder = parent.join(format!("images.{}.{}", process::id(), shared.next_number()));
                DirBuilder::new().mode(0o700).create(&folder).map_err(fault)?;
                self.folder.insert(folder)
            }
        };
        let kind = mime_type.trim_start_matches("image/");
        let path = folder.join(format!("image{}.{kind}", self.paths.len() + 1));
        let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        open.and_then(|mut file| file.write_all(&bytes)).map_err(fault)?;
        self.paths.push(path.to_str().ok_or("the folder for images has a strange name")?.to_owned());
        Ok(())
    }

    /// The prompt's text, with the paths of the images where the CLI reads them there.
    pub(super) fn prompt(&self, shared: &Shared, prompt: &Prompt) -> String {
        let mut text = prompt.text();
        if shared.turn.mentions_images {
            for path in &self.paths {
                text = format!("{text}\n@{path}");
            }
        }
        text
    }

    /// The folder, in which a CLI that mentions images must be allowed to read.
    pub(super) fn folder(&self) -> Option<String> {
        self.folder.as_ref()?.to_str().map(ToOwned::to_owned)
    }
}

impl Drop for ImageFiles {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
