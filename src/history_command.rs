//! `history`: writes down what is said through a bus.

use std::process::ExitCode;

use history::writer::{self, Orders};

use crate::output::report;
use crate::paths::history_folder;

const EXAMPLES: &str = "\
`serve` starts it by itself, unless bus.json says \"history\": false, and tells it on stdin what to do. What it has \
written is shown by `stdio-bus sessions --all` and `stdio-bus sessions show`.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A bus has started it, and tells it the rest on stdin
    #[arg(long, hide = true)]
    supervised: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if !args.supervised {
        return report("stdio-bus: `serve` starts this by itself; see `stdio-bus sessions --all`", 2);
    }
    kernel_shell::keep_memory_private();
    kernel_shell::start_logging(kernel_shell::LogFormat::Text, None);
    let outcome = clients::read_orders::<Orders>()
        .and_then(|(orders, target)| writer::run(orders, &target, history_folder()));
    kernel_shell::flush_logs();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => report(format_args!("stdio-bus: {why}"), 1),
    }
}
