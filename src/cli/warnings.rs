//! Shows what a job or a reading warned of, at the end of the commands that wait for it. Prints.

use kiln_records::{Code, Warning};

use super::printer::Printer;
use crate::client::Data;

/// Shows how many warnings there are, and those that are listed. Advice that several in a row share is shown once.
pub(super) fn show(printer: &Printer, list: &[Warning], more: u64) {
    let count = list.len() as u64 + more;
    if count == 0 {
        return;
    }
    // Beside the result, which may be data for a program.
    printer.note(format_args!("warnings   {count}"));
    for (at, warning) in list.iter().enumerate() {
        let next = list.get(at + 1).and_then(|next| next.hint.as_ref());
        let hint = warning
            .hint
            .as_deref()
            .filter(|hint| next.is_none_or(|next| next != hint));
        printer.warning(warning, hint);
    }
    if more > 0 {
        printer.warning(format_args!("{more} more are in the log"), None);
    }
}

/// Those in a server's answer about a job.
pub(super) fn of_status(status: &Data) -> (Vec<Warning>, u64) {
    let warning = |item: &Data| Warning {
        code: item.text("code").and_then(Code::named).unwrap_or(Code::Unknown),
        message: item.text("message").unwrap_or_default().to_owned(),
        hint: item.text("hint").map(str::to_owned),
        step: None,
    };
    let list = status.items("warnings").iter().map(warning).collect();
    (list, status.number("more_warnings").unwrap_or_default())
}
