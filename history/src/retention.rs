//! Which transcripts go when there are too many: the oldest that are closed, and nothing else.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, SystemTime};

use log::{info, warn};

use crate::folder::{Folder, Listed, SessionId};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of all transcripts together.
    pub max_bytes: u64,
    /// How long a transcript is kept after the last word. `None`: for ever.
    pub keep: Option<Duration>,
}

/// Goes over all transcripts, the oldest first, and has those removed that go. `remove` says whether it could: what a
/// bus has open stays, and goes on counting.
fn sweep(
    mut all: Vec<Listed>,
    limits: Limits,
    now: SystemTime,
    mut remove: impl FnMut(&Listed, &str) -> bool,
) {
    all.sort_by(|one, other| (one.modified, &one.id).cmp(&(other.modified, &other.id)));
    let mut bytes: u64 = all.iter().map(|it| it.bytes).sum();
    for it in all {
        let age = now.duration_since(it.modified).unwrap_or_default();
        let why = match limits.keep {
            Some(keep) if age > keep => "keep_days",
            _ if bytes > limits.max_bytes => "max_bytes",
            _ => continue,
        };
        if remove(&it, why) {
            bytes -= it.bytes;
        }
    }
}

/// Removes what goes, and logs it. What is open here stays, and so does what another bus has locked. Returns what is
/// gone.
pub fn apply(
    folder: &Folder,
    limits: Limits,
    open: &HashSet<SessionId>,
    now: SystemTime,
) -> io::Result<Vec<SessionId>> {
    let mut gone = Vec::new();
    let remove = |id: &SessionId| if open.contains(id) { Ok(false) } else { folder.remove(id) };
    sweep(folder.list()?, limits, now, |it, why| match remove(&it.id) {
        Ok(true) => {
            info!("removed the transcript {} ({} bytes): over {why}", it.id.as_str(), it.bytes);
            gone.push(it.id.clone());
            true
        }
        Ok(false) => false,
        Err(error) => {
            warn!("cannot remove the transcript {}: {error}", it.id.as_str());
            false
        }
    });
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::UNIX_EPOCH;

    use proptest::prelude::*;

    use super::*;

    fn listed(number: u64, bytes: u64) -> Listed {
        let id = SessionId::of("p", None, &number.to_string());
        Listed { id, bytes, modified: UNIX_EPOCH + Duration::from_secs(number) }
    }

    fn limits(max_bytes: u64, keep_sec: Option<u64>) -> Limits {
        Limits { max_bytes, keep: keep_sec.map(Duration::from_secs) }
    }

    fn overdue(all: Vec<Listed>, limits: Limits, now: SystemTime) -> Vec<Listed> {
        let mut gone = Vec::new();
        sweep(all, limits, now, |it, _| {
            gone.push(it.clone());
            true
        });
        gone
    }

    #[test]
    fn the_oldest_go_first_and_no_more_than_necessary() {
        let now = UNIX_EPOCH + Duration::from_secs(100);
        let all = || vec![listed(3, 10), listed(1, 10), listed(2, 10)];
        let times = |limits| {
            let gone = overdue(all(), limits, now);
            gone.iter()
                .map(|it| it.modified.duration_since(UNIX_EPOCH).unwrap().as_secs())
                .collect::<Vec<_>>()
        };
        assert_eq!(times(limits(30, None)), [0u64; 0]);
        assert_eq!(times(limits(29, None)), [1]);
        assert_eq!(times(limits(10, None)), [1, 2]);
        assert_eq!(times(limits(0, None)), [1, 2, 3]);
        assert_eq!(times(limits(1000, Some(98))), [1]);
    }

    #[test]
    fn what_is_open_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        let ids: Vec<_> = (0..4).map(|number| SessionId::of("p", None, &number.to_string())).collect();
        let mut files = Vec::new();
        for (number, id) in ids.iter().enumerate() {
            let mut file = folder.append(id).unwrap();
            file.write_all(&[b'x'; 100]).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1000 + number as u64)).unwrap();
            files.push(file);
        }
        files[0].lock_shared().unwrap();
        let open = HashSet::from([ids[1].clone()]);
        let gone = apply(&folder, limits(250, None), &open, SystemTime::now()).unwrap();
        assert_eq!(gone, [ids[2].clone(), ids[3].clone()]);
        assert!(folder.read(&ids[0]).is_ok() && folder.read(&ids[1]).is_ok());
    }

    proptest! {
        /// What stays is within the limits, and nothing that goes is newer than what stays because of its size.
        #[test]
        fn what_stays_is_within_the_limit(
            all in prop::collection::vec((0..50u64, 0..100u64), 0..30),
            most in 0..2000u64,
            keep in prop::option::of(0..60u64)
        ) {
            let all: Vec<_> = all.iter().map(|(age, bytes)| listed(*age, *bytes)).collect();
            let now = UNIX_EPOCH + Duration::from_secs(50);
            let gone = overdue(all.clone(), limits(most, keep), now);
            let total: u64 = all.iter().map(|it| it.bytes).sum();
            let removed: u64 = gone.iter().map(|it| it.bytes).sum();
            prop_assert!(total - removed <= most);
            if let Some((last, others)) = gone.split_last() && keep.is_none() {
                let others: u64 = others.iter().map(|it| it.bytes).sum();
                prop_assert!(total - others > most, "{:?} did not have to go", last);
            }
        }
    }
}
