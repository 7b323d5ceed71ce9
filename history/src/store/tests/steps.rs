//! Whatever happens, in any order: nothing is doubled or out of order, and what is missing is a gap.

use proptest::prelude::*;

use super::disk::{full, nearly_full, sync_fails};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// The agent says something, as a chunk or whole.
    Say { is_chunk: bool },
    /// The program is killed, and only this part of its last write is on disk.
    Kill { part: f64 },
    /// The program ends, and another takes its place.
    Leave,
    /// The agent says something while the disk takes nothing, or only a part of it.
    Fail { is_chunk: bool, is_part: bool },
    /// The disk says that it has lost what it took since it last said that all is well.
    Lose,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<bool>().prop_map(|is_chunk| Step::Say { is_chunk }),
        1 => (0.0..1.0f64).prop_map(|part| Step::Kill { part }),
        1 => Just(Step::Leave),
        1 => any::<[bool; 2]>().prop_map(|[is_chunk, is_part]| Step::Fail { is_chunk, is_part }),
        1 => Just(Step::Lose),
    ]
}

/// Does this while the disk takes nothing, or only a part of it.
fn failing(writer: &mut Store, is_part: bool, act: impl FnOnce(&mut Store)) {
    let append = std::mem::replace(&mut writer.paper.append, if is_part { nearly_full } else { full });
    act(writer);
    writer.paper.append = append;
}

/// The disk loses all that it took after it had so many bytes.
fn loses(writer: &mut Store, path: &Path, synced: u64) {
    writer.paper.sync_file = sync_fails;
    writer.sync();
    writer.paper.sync_file = File::sync_data;
    if length(path) > synced {
        File::options().write(true).open(file_of(path)).unwrap().set_len(synced).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
    /// However often the writer is killed: nothing is doubled, nothing is out of order, and what is missing is a gap of
    /// exactly that size.
    #[test]
    fn what_is_missing_is_a_gap(steps in prop::collection::vec(step(), 0..40)) {
        let dir = tempdir().unwrap();
        let path = dir.path();
        let again = || {
            let mut writer = store(path);
            writer.opened(LABEL, header("A"));
            writer
        };
        let mut writer = again();
        writer.heard(LABEL, says(0, "plan", "0"));
        // How much of the file was there before the last write, and how much is on disk for sure.
        let (mut said, mut safe, mut synced) = (1, length(path), 0);
        for step in steps {
            let before = length(path);
            match step {
                Step::Say { is_chunk } => {
                    let kind = if is_chunk { "agent_message_chunk" } else { "plan" };
                    writer.heard(LABEL, says(said, kind, &format!("{said} ")));
                    said += 1;
                    safe = before;
                }
                Step::Kill { part } => {
                    drop(writer);
                    let left = safe + ((before - safe) as f64 * part) as u64;
                    File::options().write(true).open(file_of(path)).unwrap().set_len(left).unwrap();
                    (writer, safe, synced) = (again(), left, left);
                }
                Step::Leave => {
                    writer.leave();
                    (writer, safe, synced) = (again(), length(path), length(path));
                }
                Step::Fail { is_chunk, is_part } => {
                    let kind = if is_chunk { "agent_message_chunk" } else { "plan" };
                    let heard = says(said, kind, &format!("{said} "));
                    failing(&mut writer, is_part, |writer| _ = writer.heard(LABEL, heard));
                    said += 1;
                    safe = before;
                }
                Step::Lose => {
                    loses(&mut writer, path, synced);
                    safe = length(path);
                }
            }
        }
        writer.heard(LABEL, says(said, "plan", &said.to_string()));
        let mut next = 0;
        for text in shown(&read(path)) {
            if let Some(lines) = text.strip_prefix("gap ") {
                next += lines.parse::<u64>().unwrap();
                continue;
            }
            for number in text.split_whitespace() {
                prop_assert_eq!(number.parse::<u64>().unwrap(), next);
                next += 1;
            }
        }
        prop_assert_eq!(next, said + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
    /// A bus tells the next writer all that its log still has: what is on disk is not doubled, what was in the log is
    /// there, and only what neither had is a gap.
    #[test]
    fn what_the_bus_tells_again_is_written_once(
        steps in prop::collection::vec(step(), 0..40),
        log_lines in 0..12u64
    ) {
        let dir = tempdir().unwrap();
        let path = dir.path();
        let kind = |n: u64| if n.is_multiple_of(3) { "plan" } else { "agent_message_chunk" };
        let again = |said: u64| {
            let mut writer = store(path);
            writer.opened(LABEL, header("A"));
            for n in said.saturating_sub(log_lines)..said {
                writer.heard(LABEL, Heard { is_again: true, ..says(n, kind(n), &format!("{n} ")) });
            }
            writer
        };
        let mut writer = again(0);
        let (mut said, mut safe, mut synced, mut lost) = (0, 0, 0, 0);
        for step in steps {
            let before = length(path);
            match step {
                Step::Say { .. } => {
                    writer.heard(LABEL, says(said, kind(said), &format!("{said} ")));
                    said += 1;
                    safe = before;
                }
                Step::Kill { part } => {
                    drop(writer);
                    let left = safe + ((before - safe) as f64 * part) as u64;
                    if before > 0 {
                        File::options().write(true).open(file_of(path)).unwrap().set_len(left).unwrap();
                    }
                    synced = length(path);
                    writer = again(said);
                    safe = length(path);
                    lost += 1;
                }
                Step::Leave => {
                    writer.leave();
                    synced = length(path);
                    writer = again(said);
                    safe = length(path);
                }
                Step::Fail { is_part, .. } => {
                    let heard = says(said, kind(said), &format!("{said} "));
                    failing(&mut writer, is_part, |writer| _ = writer.heard(LABEL, heard));
                    (said, safe, lost) = (said + 1, before, lost + 1);
                }
                Step::Lose => {
                    loses(&mut writer, path, synced);
                    (safe, lost) = (length(path), lost + 1);
                }
            }
        }
        writer.heard(LABEL, says(said, "plan", &format!("{said} ")));
        let (mut next, mut missing) = (0, 0);
        for text in shown(&read(path)) {
            if let Some(lines) = text.strip_prefix("gap ") {
                next += lines.parse::<u64>().unwrap();
                missing += lines.parse::<u64>().unwrap();
                continue;
            }
            for number in text.split_whitespace() {
                prop_assert_eq!(number.parse::<u64>().unwrap(), next);
                next += 1;
            }
        }
        prop_assert_eq!(next, said + 1);
        prop_assert!(missing == 0 || lost > 0 || log_lines == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]
    /// A session lives several times, and each writer is told all of its life that it is in. Whatever the disk does,
    /// nothing is doubled or out of order, and what is missing is a gap of that size; only who is killed takes what it
    /// could not write down with it.
    #[test]
    fn lives_are_told_apart_whatever_the_disk_does(
        steps in prop::collection::vec((step(), any::<bool>()), 0..40),
    ) {
        let dir = tempdir().unwrap();
        let path = dir.path();
        let begins = |writer: &mut Store, life: u64, from: u64, upto: u64| {
            writer.opened(LABEL, of_life(&format!("B{life}"), &format!("{life}.1")));
            for n in from..upto {
                writer.heard(LABEL, Heard { is_again: true, ..says(n - from, "plan", &format!("{n} ")) });
            }
        };
        let mut writer = store(path);
        begins(&mut writer, 0, 0, 0);
        let (mut said, mut life, mut from, mut synced, mut is_killed) = (0, 0, 0, 0, false);
        for (step, ends) in steps {
            match step {
                Step::Say { .. } => {
                    writer.heard(LABEL, says(said - from, "plan", &format!("{said} ")));
                    said += 1;
                }
                Step::Kill { part } => {
                    drop(writer);
                    let left = synced + (length(path).saturating_sub(synced) as f64 * part) as u64;
                    if length(path) > 0 {
                        File::options().write(true).open(file_of(path)).unwrap().set_len(left).unwrap();
                    }
                    (writer, synced, is_killed) = (store(path), length(path), true);
                    begins(&mut writer, life, from, said);
                }
                Step::Leave => {
                    writer.leave();
                    (writer, synced) = (store(path), length(path));
                    begins(&mut writer, life, from, said);
                }
                Step::Fail { is_part, .. } => {
                    let heard = says(said - from, "plan", &format!("{said} "));
                    failing(&mut writer, is_part, |writer| {
                        writer.heard(LABEL, heard);
                        if ends {
                            writer.ended(LABEL, String::new(), 0, None);
                        }
                    });
                    said += 1;
                    if ends {
                        (life, from) = (life + 1, said);
                        begins(&mut writer, life, from, said);
                        // The end of a session is made safe at once, or as soon as it goes on.
                        synced = length(path);
                    }
                }
                Step::Lose => loses(&mut writer, path, synced),
            }
        }
        writer.heard(LABEL, says(said - from, "plan", &format!("{said} ")));
        let (mut next, mut missing) = (0, 0);
        for text in shown(&read(path)) {
            if let Some(lines) = text.strip_prefix("gap ") {
                missing += lines.parse::<u64>().unwrap();
            } else if let Ok(number) = text.trim_end().parse::<u64>() {
                prop_assert!(number >= next, "{} after {}", number, next);
                prop_assert!(is_killed || number == next + missing, "{} after {} and {}", number, next, missing);
                (next, missing) = (number + 1, 0);
            }
        }
        prop_assert_eq!(next, said + 1);
    }
}
