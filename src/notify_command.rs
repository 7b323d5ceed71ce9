//! `notify`: tells people who are away what waits for them.

use std::process::ExitCode;

use log::LevelFilter;
use notify::Orders;

use crate::output::report;

const EXAMPLES: &str = "\
`serve` starts it by itself if bus.json has \"notify\": [{\"url\": URL}], and tells it on stdin what to do. What \
became of the notices is in `stdio-bus status --json` and `stdio-bus metrics`.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A bus has started it, and tells it the rest on stdin
    #[arg(long, hide = true)]
    supervised: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if !args.supervised {
        return report("stdio-bus: `serve` starts this by itself, see \"notify\" in docs/NOTIFY.md", 2);
    }
    kernel_shell::keep_memory_private();
    kernel_shell::start_logging(kernel_shell::LogFormat::Text, None);
    // Below that the HTTP client says where it sends what, and URLs are secrets.
    log::set_max_level(log::max_level().min(LevelFilter::Info));
    let outcome = clients::read_orders::<Orders>().and_then(|(orders, target)| notify::run(orders, &target));
    kernel_shell::flush_logs();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => report(format_args!("stdio-bus: {why}"), 1),
    }
}
