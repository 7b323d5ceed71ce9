//! A file in memory that nobody else can open by a name. It is sealed before it is handed over, so that what was
//! checked is what is read.
//!
//! It begins with the copies of logs, which are made while the bus goes on. The state follows, and is written a second
//! time when the bus stands still.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::Mmap;

use crate::handover::record::{Part, head, record_head};
use crate::process::pre_exec::map;

pub(crate) struct Memory {
    file: File,
    /// How many bytes of logs are in it.
    logs: usize,
}

impl Memory {
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> io::Result<Memory> {
        use nix::sys::memfd::{MFdFlags, memfd_create};

        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        Ok(Memory::from(memfd_create("stdio-bus", flags)?))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> io::Result<Memory> {
        Err(io::Error::other("only Linux has files in memory"))
    }

    /// Adds copies of logs, before anything else is written.
    pub(crate) fn add_logs(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.logs_end()))?;
        self.file.write_all(bytes)?;
        self.logs += bytes.len();
        Ok(())
    }

    fn logs_end(&self) -> u64 {
        (head().len() + record_head(Part::Logs, 0).len() + self.logs) as u64
    }

    /// Replaces all but the logs. Its pages are used again, which makes it quicker the second time.
    pub(crate) fn write(&mut self, parts: &[(Part, &[u8])]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&[head(), record_head(Part::Logs, self.logs)].concat())?;
        self.file.seek(SeekFrom::Start(self.logs_end()))?;
        for (part, bytes) in parts {
            self.file.write_all(&record_head(*part, bytes.len()))?;
            self.file.write_all(bytes)?;
        }
        let length = self.file.stream_position()?;
        self.file.set_len(length)
    }

    /// From now on nobody can change it.
    #[cfg(target_os = "linux")]
    pub(crate) fn seal(&self) -> io::Result<()> {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};

        let seals =
            SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&self.file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn seal(&self) -> io::Result<()> {
        Ok(())
    }

    /// All of it, where it is. Whoever has written it writes no more, or writes only once nobody reads this.
    pub(crate) fn map(&self) -> io::Result<Mmap> {
        map(&self.file)
    }

    pub(crate) fn try_clone(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

impl From<OwnedFd> for Memory {
    fn from(fd: OwnedFd) -> Memory {
        Memory { file: fd.into(), logs: 0 }
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::handover::record::Records;

    #[test]
    fn what_was_written_last_is_read_and_stays_once_it_is_sealed() {
        let mut memory = Memory::new().unwrap();
        memory.add_logs(b"first, ").unwrap();
        memory.add_logs(b"second").unwrap();
        memory.write(&[(Part::Core, b"a longer text"), (Part::Shell, b"x")]).unwrap();
        let before = memory.map().unwrap();
        assert_eq!(Records::read(&before).unwrap().part(Part::Shell).unwrap(), b"x");
        memory.write(&[(Part::Core, b"short")]).unwrap();
        memory.seal().expect("who has read it does not matter");
        drop(before);
        let mut other = Memory::from(memory.try_clone().unwrap());
        assert!(other.write(&[(Part::Core, b"other")]).is_err());
        let bytes = other.map().unwrap();
        let records = Records::read(&bytes).unwrap();
        assert_eq!(records.part(Part::Core).unwrap(), b"short");
        assert_eq!(&bytes[records.range(Part::Logs).unwrap()], b"first, second");
        assert!(records.part(Part::Shell).is_err());
    }
}
