//! Runs the tests of a program as the compiler's own harness does, with one more outcome: a test that finds that this
//! machine cannot run it is skipped, and counted and listed as such. Tests come by `#[test]` of `kiln-harness-macros`, which
//! a program takes with `#[macro_use] extern crate kiln_harness;`.
//!
//! A program has a list of its tests that take long. `KILN_SUITE` says which run: `quick`, all but those; `rest`, only those;
//! else all. What is named on the command line runs in any case. `KILN_TEST_TIMES` names a file to which a line is added when a test begins
//! (`begun NAME`), and one when it ends (`ended NAME SECONDS`).

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    panic::{self, PanicHookInfo},
    process::ExitCode,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
    time::Instant,
};

use fs_err::File;
pub use inventory;
pub use kiln_harness_macros::test;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// One test, as its attribute describes it.
#[derive(Debug)]
pub struct Case {
    /// The path of its module, which begins with the program's name.
    pub module: &'static str,
    /// The function's name.
    pub name: &'static str,
    /// Why it only runs when it is asked for, if so.
    pub ignored: Option<&'static str>,
    /// The test itself. It fails by panicking.
    pub run: fn(),
}

inventory::collect!(Case);

impl Case {
    /// The name by which a user asks for it: the module's path without the program, and the function's name.
    fn path(&self) -> String {
        match self.module.split_once("::") {
            Some((_, module)) => format!("{module}::{}", self.name),
            None => self.name.to_owned(),
        }
    }
}

/// The end of a test that this machine cannot run, and why.
struct Skipped(String);

/// Ends the test that calls this, as one that this machine cannot run.
pub fn skip(why: impl Into<String>) -> ! {
    panic::resume_unwind(Box::new(Skipped(why.into())))
}

/// Runs an asynchronous test: with one thread, or with several that take tasks from each other.
pub fn block_on<F: Future>(threads: usize, test: F) -> F::Output {
    let mut builder = if threads == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads);
        builder
    };
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(test)
}

/// What tests that panic said, by the names of their threads.
static SAID: LazyLock<Mutex<BTreeMap<String, String>>> = LazyLock::new(Mutex::default);

/// Keeps what a test's own thread says as it panics for the list of failures; a panic of any other thread is printed, as
/// usual.
fn note_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        let thread = thread::current();
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = thread.name().and_then(|name| said.get_mut(name)) {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let words = info.payload_as_str().unwrap_or("a panic without words");
            let _ = writeln!(text, "panicked at {place}:\n{words}");
        } else {
            drop(said);
            usual(info);
        }
    }));
}

/// A test runs in a thread of its own name, as tools of the host then show it.
fn run_one(case: &Case, name: &str) -> Result<Completion, Failed> {
    let said = || SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said().insert(name.to_owned(), String::new());
    let run = case.run;
    let ended = thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| format!("no thread: {error}"))?
        .join();
    let words = said().remove(name).unwrap_or_default();
    match ended {
        Ok(()) => Ok(Completion::Completed),
        Err(payload) => match payload.downcast::<Skipped>() {
            Ok(skipped) => Ok(Completion::ignored_with(skipped.0)),
            Err(_) => Err(Failed::from(words)),
        },
    }
}

/// The file for times, if one is named.
fn times() -> Option<Arc<Mutex<File>>> {
    let path = std::env::var_os("KILN_TEST_TIMES")?;
    let file = File::options().append(true).create(true).open(path).ok()?;
    Some(Arc::new(Mutex::new(file)))
}

fn note(times: Option<&Mutex<File>>, line: &str) {
    if let Some(file) = times {
        let _ = writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
    }
}

/// Runs what the command line asks for, or everything that `KILN_SUITE` leaves. `long` has the tests that take long, by the
/// beginnings of their paths.
pub fn main(long: &[&str]) -> ExitCode {
    let arguments = Arguments::from_args();
    let mut cases: Vec<_> = inventory::iter::<Case>().collect();
    cases.sort_by_key(|case| case.path());
    let takes_long = |case: &Case| long.iter().any(|begin| case.path().starts_with(begin));
    for begin in long {
        let is_there = cases.iter().any(|case| case.path().starts_with(begin));
        assert!(
            is_there,
            "the list of tests that take long names {begin}, which no test has"
        );
    }
    // A case that runs only when it is asked for is no test that this machine cannot run.
    cases.retain(|case| case.ignored.is_none() || arguments.ignored || arguments.include_ignored);
    if arguments.filter.is_none() {
        match std::env::var("KILN_SUITE").as_deref() {
            Ok("quick") => cases.retain(|case| !takes_long(case)),
            Ok("rest") => cases.retain(|case| takes_long(case)),
            _ => {}
        }
    }
    note_panics();
    let times = times();
    let trials = cases.into_iter().map(|case| {
        let (name, times) = (case.path(), times.clone());
        let run = move || {
            let name = case.path();
            note(times.as_deref(), &format!("begun {name}"));
            let begun = Instant::now();
            let outcome = run_one(case, &name);
            note(
                times.as_deref(),
                &format!("ended {name} {:.3}", begun.elapsed().as_secs_f64()),
            );
            outcome
        };
        Trial::ignorable_test(name, run).with_ignored_flag(case.ignored.is_some())
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
