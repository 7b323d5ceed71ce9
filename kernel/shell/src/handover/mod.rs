//! What a bus leaves for the program that takes its place in the same process: its state as bytes, and open fds.
//!
//! Each part of the shell writes down itself in its own file. Here is what they share: which fds stay open, the form of
//! the bytes, and the memory that they are in.

pub(crate) mod memory;
pub(crate) mod record;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// The fds that stay open when this process becomes another program.
#[derive(Default)]
pub(crate) struct KeptFds<'a>(Vec<BorrowedFd<'a>>);

impl<'a> KeptFds<'a> {
    /// The number by which the next program finds it.
    pub(crate) fn keep(&mut self, fd: &'a impl AsFd) -> RawFd {
        self.keep_borrowed(fd.as_fd())
    }

    pub(crate) fn keep_borrowed(&mut self, fd: BorrowedFd<'a>) -> RawFd {
        self.0.push(fd);
        fd.as_raw_fd()
    }

    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        self.0.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Only for the moment before this process becomes another program: a child that is started meanwhile would have
    /// them too.
    pub(crate) fn open_on_exec(&self, is_open: bool) -> nix::Result<()> {
        let flags = if is_open { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
        self.0.iter().try_for_each(|fd| fcntl(fd, FcntlArg::F_SETFD(flags)).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn kept_fds_are_open_on_exec_only_while_they_are_told_to() {
        let file = File::open("/dev/null").unwrap();
        let is_open = || fcntl(&file, FcntlArg::F_GETFD).unwrap() & FdFlag::FD_CLOEXEC.bits() == 0;
        let mut kept = KeptFds::default();
        assert_eq!(kept.keep(&file), file.as_raw_fd());
        for open in [true, false] {
            kept.open_on_exec(open).unwrap();
            assert_eq!(is_open(), open);
        }
    }
}
