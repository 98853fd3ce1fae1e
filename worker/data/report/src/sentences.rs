//! The report as text: a section for each set, with one row for each fact.

use dtrain_common::text::{grouped, wrapped};

use crate::balance::Balance;
use crate::documents::TextReport;
use crate::duplicates::Duplicates;
use crate::report::{Report, list, samples};
use crate::set::{SetReport, Sizes};
use crate::spread::Spread;
use crate::values::{FieldKind, FieldValues, LoadedValues};

/// Columns of a line, and of the word before a row.
const WIDTH: usize = 110;
const ROW: usize = 14;
/// Names and kinds in a row; further ones are only counted.
const LISTED: usize = 5;

impl Report {
    /// Writes the report in at most about 40 lines.
    pub fn text(&self) -> String {
        let mut out = Lines(String::new());
        out.line(&format!("{}: task {}, data.kind {}", self.recipe, self.task, self.kind));
        self.files.iter().for_each(|set| out.set(set));
        if self.files.is_empty() {
            for set in &self.sets {
                let shapes = set.fields.iter().map(|(name, shape)| named_shape(name, shape));
                out.line(&format!("{}: {}", set.name, grouped_samples(set.samples)));
                out.row("fields", &shapes.collect::<Vec<_>>().join(", "));
            }
        } else if let Some(set) = self.sets.iter().find(|set| set.samples != set.singles) {
            let of = format!("{} of {} single ones in {}", samples(set.samples), set.singles, set.name);
            out.row("samples", &of);
        }
        if let Some(text) = &self.text {
            out.text(text);
        }
        if let Some(duplicates) = &self.duplicates {
            out.duplicates(duplicates);
        }
        if let Some(values) = &self.values {
            out.values(values, self.files.is_empty());
        }
        self.picture.iter().for_each(|picture| out.entry("picture", picture));
        self.warnings.iter().for_each(|warning| out.entry("warning", warning));
        self.problems.iter().for_each(|problem| out.entry("problem", problem));
        match &self.refusal {
            Some(refusal) => out.entry("error", &format!("a training stops: {refusal}")),
            None => out.entry("training", "can start with this data"),
        }
        out.0
    }
}

fn named_shape(name: &str, shape: &[usize]) -> String {
    let lengths: Vec<_> = shape.iter().map(usize::to_string).collect();
    match lengths.as_slice() {
        [] => name.to_owned(),
        lengths => format!("{name} [{}]", lengths.join(", ")),
    }
}

struct Lines(String);

impl Lines {
    fn line(&mut self, text: &str) {
        self.0 += text;
        self.0.push('\n');
    }

    /// Adds a fact of a section.
    fn row(&mut self, word: &str, text: &str) {
        self.indented(&format!("  {word:<width$}", width = ROW - 2), text);
    }

    /// Adds a fact of the whole.
    fn entry(&mut self, word: &str, text: &str) {
        self.indented(&format!("{word:<ROW$}"), text);
    }

    fn indented(&mut self, word: &str, text: &str) {
        for (number, line) in text.lines().enumerate() {
            match number {
                0 => self.0 += word,
                _ => self.0 += &" ".repeat(ROW),
            }
            // It ends the line.
            wrapped(&mut self.0, WIDTH, ROW, ROW, line);
        }
    }

    fn set(&mut self, set: &SetReport) {
        let usable = match set.unusable.samples {
            0 => String::new(),
            _ => format!(", {} usable", number(set.usable)),
        };
        let all = grouped_samples(set.samples);
        self.line(&format!("{}: {all}{usable}, in {}", set.name, set.place));
        for (role, kinds) in &set.files {
            let named = kinds.iter().take(LISTED).map(|(kind, files)| format!("{} {kind}", number(*files)));
            let others = kinds.len().saturating_sub(LISTED);
            let more = if others > 0 { format!(" and {others} more kinds") } else { String::new() };
            self.row(&format!("{role}s"), &format!("{}{more}", named.collect::<Vec<_>>().join(", ")));
        }
        if let Some(sizes) = &set.sizes {
            self.row("sizes", &sizes.text());
        }
        if set.turned > 0 {
            let turned = dtrain_common::text::counted(set.turned, "file");
            self.row("orientation", &format!("{turned} with an EXIF orientation other than the stored one"));
        }
        if set.lossy_maps > 0 {
            let maps = dtrain_common::text::counted(set.lossy_maps, "map");
            self.row("compression", &format!("{maps} with values that lossy compression has changed"));
        }
        if set.unusable.samples > 0 {
            let kinds = set.unusable.by_kind.iter().map(|(kind, count)| format!("{} {kind}", number(*count)));
            self.row("left out", &kinds.collect::<Vec<_>>().join(", "));
            for (path, reason) in &set.unusable.first {
                self.row("", &format!("{path}: {reason}"));
            }
            let more = set.unusable.samples - set.unusable.first.len();
            if more > 0 {
                self.row("", &format!("and {} more", number(more)));
            }
        }
        if set.ignored.files() > 0 {
            self.row("ignored", &format!("{} (no images, or in no class)", set.ignored));
        }
        for (field, balance) in &set.classes {
            let word = if field == "label" { "classes" } else { field };
            self.row(word, &balance.text("image"));
            if balance.of_none > 0 {
                self.row("", &format!("{} without a class", samples(balance.of_none as usize)));
            }
        }
        if let Some((balance, masks)) = &set.pixels {
            let of = match *masks < set.samples {
                true => format!("in {} of {} masks, ", number(*masks), number(set.samples)),
                false => String::new(),
            };
            self.row("pixels", &format!("{of}{}", balance.shares()));
        }
        for (name, spread) in &set.numbers {
            self.row(name, &spread.text());
        }
        if let Some(maps) = &set.maps {
            self.row("map values", &maps.text());
        }
        if !set.decoded {
            self.row("checked", "headers of all files; damage behind them is found when a file is loaded");
        }
    }

    fn text(&mut self, text: &TextReport) {
        let files = match text.files {
            1 => text.first_file.clone(),
            files => format!("{files} files from {}", text.first_file),
        };
        let tokens = format!("{} tokens, vocabulary of {}", grouped(text.tokens), number(text.vocabulary));
        self.row("text", &format!("{files}: {tokens}"));
        if let Some(documents) = &text.documents {
            self.row(
                "documents",
                &format!("{}, {} tokens each", number(documents.documents), documents.lengths.range()),
            );
            if let Some([_, low, median, high, most]) = documents.lengths.percentiles {
                self.row(
                    "",
                    &format!("25%, 50%, 75%, 99% are at most {low}, {median}, {high}, {most} tokens long"),
                );
            }
            if let Some((longer, context)) = documents.longer {
                let longer = number(longer);
                self.row("", &format!("{longer} longer than a sample of {context} tokens, in pieces"));
            }
            if documents.left_out > 0 {
                self.row("left out", &format!("{} documents of one token", documents.left_out));
            }
            self.row("copies", &format!("{} documents repeat an earlier one", number(documents.repeated)));
        }
    }

    fn duplicates(&mut self, duplicates: &Duplicates) {
        let within = duplicates.within.iter().map(|repeated| {
            let pairs = repeated.first.iter().map(|(copy, original)| format!("{copy} is {original}"));
            let pairs = list(pairs.collect(), repeated.samples);
            let verb = if repeated.samples == 1 { "repeats" } else { "repeat" };
            format!("{} of {} {verb} an earlier one: {pairs}", samples(repeated.samples), repeated.set)
        });
        let within: Vec<_> = within.collect();
        let text = match (within.as_slice(), duplicates.across.is_empty()) {
            ([], true) => "no two samples have the same content".to_owned(),
            ([], false) => "none within a set".to_owned(),
            (all, _) => all.join("\n"),
        };
        self.entry("copies", &text);
    }

    /// Adds the values of samples, and their classes unless the files have told them.
    fn values(&mut self, values: &LoadedValues, has_classes: bool) {
        let LoadedValues { set, samples: loaded, of, unreadable, fields } = values;
        let broken = match unreadable {
            0 => String::new(),
            count => format!("; {count} could not be read"),
        };
        if fields.iter().all(|field| matches!(field.values, FieldKind::Tokens)) {
            return;
        }
        self.line(&format!(
            "values of {} of {} {set} samples, prepared without random changes{broken}",
            number(*loaded),
            number(*of)
        ));
        let is_new = |field: &&FieldValues| has_classes || !matches!(field.values, FieldKind::Classes(_));
        fields.iter().filter(is_new).for_each(|field| self.field(field));
    }

    fn field(&mut self, field: &FieldValues) {
        match &field.values {
            FieldKind::Tokens => {}
            FieldKind::Classes(classes) => {
                let all: u64 = classes.values().sum();
                let mut most: Vec<_> = classes.iter().collect();
                most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
                let share = |count: u64| percent(count as f64 / all.max(1) as f64);
                let named =
                    most.iter().take(LISTED).map(|(class, count)| format!("{class} {}", share(**count)));
                let named = list(named.collect(), classes.len());
                self.row(&field.field, &format!("{} different: {named}", number(classes.len())));
            }
            FieldKind::Numbers(spreads) => {
                for (number, spread) in spreads.iter().enumerate().take(LISTED) {
                    let name = match spreads.len() {
                        1 => field.field.clone(),
                        _ => format!("{}[{number}]", field.field),
                    };
                    self.row(&name, &spread.text());
                }
            }
            FieldKind::Image { channels, recipe } => {
                let of = |figure: &dyn Fn(&Spread) -> f64| {
                    channels.iter().map(|channel| short(figure(channel))).collect::<Vec<_>>().join(", ")
                };
                let range = |figure: fn(f64, f64) -> f64, first: f64, of: &dyn Fn(&Spread) -> f64| {
                    short(channels.iter().map(of).fold(first, figure))
                };
                let low = range(f64::min, f64::INFINITY, &|channel| channel.min);
                let high = range(f64::max, f64::NEG_INFINITY, &|channel| channel.max);
                let shape = named_shape("", &field.shape);
                self.row(&field.field, &format!("{} from {low} to {high}", shape.trim()));
                let means = recipe.iter().map(|(mean, _)| short(*mean)).collect::<Vec<_>>().join(", ");
                let deviations = recipe.iter().map(|(_, std)| short(*std)).collect::<Vec<_>>().join(", ");
                self.row("", &format!("mean [{}]; data.mean = [{means}]", of(&|channel| channel.mean)));
                self.row(
                    "",
                    &format!("std  [{}]; data.std  = [{deviations}]", of(&|channel| channel.deviation)),
                );
            }
        }
    }
}

impl Balance {
    /// Writes how many of `what` the classes have.
    fn text(&self, what: &str) -> String {
        let occurring = self.occurring();
        let (Some((first, least)), Some((last, most))) = (occurring.first(), occurring.last()) else {
            return format!(
                "{}, none with a{} {what}",
                number(self.classes.len()),
                if what == "image" { "n" } else { "" }
            );
        };
        let median = occurring[occurring.len() / 2].1;
        let mut text = format!("{}: ", number(self.classes.len()));
        text += &match least == most {
            true => format!("{} {what}{} each", grouped(*most), if *most == 1 { "" } else { "s" }),
            false => format!(
                "from {} ({first}, {}) to {} ({last}, {}) {what}s, median {}",
                grouped(*least),
                percent(self.share(*least)),
                grouped(*most),
                percent(self.share(*most)),
                grouped(median)
            ),
        };
        let missing = self.missing();
        if !missing.is_empty() {
            let first = missing.iter().take(LISTED).map(|name| (*name).to_owned()).collect();
            text += &format!("; {} without any: {}", number(missing.len()), list(first, missing.len()));
        }
        text
    }

    /// Writes the part of each class, the most frequent first.
    fn shares(&self) -> String {
        /// Classes in the row.
        const SHARES: usize = 12;
        let occurring = self.occurring();
        let shares = occurring.iter().rev().take(SHARES).map(|(name, count)| {
            let share = percent(self.share(*count));
            format!("{name} {share}")
        });
        let mut text = list(shares.collect(), occurring.len());
        if let (true, Some((name, count))) = (occurring.len() > SHARES, occurring.first()) {
            text += &format!(", the rarest {name} with {}", percent(self.share(*count)));
        }
        if self.of_none > 0 {
            text += &format!("; {} ignored", percent(self.share(self.of_none)));
        }
        let missing = self.missing();
        if !missing.is_empty() {
            let first = missing.iter().take(LISTED).map(|name| (*name).to_owned()).collect();
            text += &format!("; none of {}", list(first, missing.len()));
        }
        text
    }
}

impl Spread {
    fn range(&self) -> String {
        format!("{} to {}", short(self.min), short(self.max))
    }

    fn text(&self) -> String {
        if self.count == 0 {
            return "no numbers".to_owned();
        }
        let percentiles = self.percentiles.map(|all| {
            let all: Vec<_> = all.iter().map(|value| short(*value)).collect();
            format!("; percentiles 1, 25, 50, 75, 99: {}", all.join(", "))
        });
        format!(
            "{}, mean {}, std {}{}",
            self.range(),
            short(self.mean),
            short(self.deviation),
            percentiles.unwrap_or_default()
        )
    }
}

impl Sizes {
    fn text(&self) -> String {
        let size = |(width, height): (u32, u32)| format!("{width} x {height}");
        if self.different == 1 {
            return format!("all {} pixels", size(self.most_frequent));
        }
        format!(
            "{} different, from {} to {}, median {}, most frequent {} ({})",
            number(self.different),
            size(self.smallest),
            size(self.largest),
            size(self.median),
            size(self.most_frequent),
            percent(self.of_it as f64 / self.images.max(1) as f64)
        )
    }
}

fn grouped_samples(count: usize) -> String {
    format!("{} sample{}", number(count), if count == 1 { "" } else { "s" })
}

fn number(count: usize) -> String {
    grouped(count as u64)
}

fn percent(share: f64) -> String {
    match 100.0 * share {
        share if share > 0.0 && share < 0.05 => "under 0.1%".to_owned(),
        share => format!("{share:.1}%"),
    }
}

/// Writes a number with about four digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => return "0".to_owned(),
        size if size >= 1000.0 => 0,
        size if size >= 10.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => match text.trim_end_matches('0').trim_end_matches('.') {
            "-0" => "0".to_owned(),
            trimmed => trimmed.to_owned(),
        },
        false => text,
    }
}
