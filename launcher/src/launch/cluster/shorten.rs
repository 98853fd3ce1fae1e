//! Makes messages short enough for the wire: a worker's last words may have any length.

use dtrain_agent::cluster::message::{Blame, ToLeader};

/// The most bytes of each text of a shortened message. JSON may need six bytes for one.
const TEXT: usize = 1500;
/// The most bytes of all lines for the user.
const BANNER: usize = 4000;
const ENDS: usize = 50;
/// The most bytes of a reason that other nodes print.
pub(super) const LONGEST_REASON: usize = 4000;

/// Returns the message with shorter texts and fewer ends of workers; `None` if it is short already.
pub(super) fn shortened(message: ToLeader) -> Option<ToLeader> {
    let ToLeader::Drained { epoch, mut report } = message else { return None };
    report.ends.truncate(ENDS);
    if let Some(blame) = &mut report.blame {
        shorten(blame);
    }
    Some(ToLeader::Drained { epoch, report })
}

/// Returns the report without its texts; `None` for other messages.
pub(super) fn bare(message: ToLeader) -> Option<ToLeader> {
    let ToLeader::Drained { epoch, mut report } = message else { return None };
    report.ends.truncate(ENDS);
    report.blame = None;
    Some(ToLeader::Drained { epoch, report })
}

fn shorten(blame: &mut Blame) {
    let failure = &mut blame.failure;
    let cause = failure.cause.as_mut().map(|cause| &mut cause.text);
    let texts = failure.message.iter_mut().chain(cause).chain(&mut blame.reported);
    texts.chain([&mut blame.ended]).for_each(|text| cut(text, TEXT));
    let mut left = BANNER;
    blame.banner.retain_mut(|line| {
        cut(line, left);
        left -= line.len().min(left);
        !line.is_empty()
    });
}

/// Cuts a text to at most this number of bytes.
pub(super) fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_agent::cluster::message::Report;
    use dtrain_agent::local::Cause;
    use dtrain_common::result::{self, Failure};

    #[test]
    fn a_report_with_endless_texts_fits_into_a_frame() {
        let long = "\u{1}é".repeat(100_000);
        let cause = Some(result::Cause { kind: "python".into(), text: long.clone() });
        let failure = Failure { message: Some(long.clone()), cause, ..Failure::default() };
        let banner = vec![long.clone(); 5];
        let blame = Blame { failure, ended: long.clone(), reported: Some(long), banner };
        let report = Report {
            cause: Cause::Failed { rank: 0 },
            silent_since: None,
            ends: Vec::new(),
            notices: Vec::new(),
            port_taken: false,
            has_checkpoint: false,
            blame: Some(Box::new(blame)),
        };
        let message = shortened(ToLeader::Drained { epoch: 1, report: Box::new(report) }).unwrap();
        assert!(serde_json::to_vec(&message).unwrap().len() < 60_000);
        assert_eq!(shortened(ToLeader::Beat { number: 1 }), None);
    }
}
