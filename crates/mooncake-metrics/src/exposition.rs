//! How metrics are written down: the text that Prometheus reads, and tables for people.

use std::fmt::{Display, Write};

use crate::histogram::{Distribution, Unit};

/// What kind of metric it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Grows, and starts at 0 with the process.
    Counter,
    /// A value as of now.
    Gauge,
    /// A distribution.
    Histogram,
    /// How many there were, and what they come to together; or shares of them, and what each stays within.
    Summary,
}

impl Kind {
    /// As both pages say it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

/// Metrics of one name.
#[derive(Debug, Clone, Copy)]
pub struct Family<'a> {
    /// Whole name, with its unit.
    pub name: &'a str,
    /// Its kind.
    pub kind: Kind,
    /// What it says.
    pub help: &'a str,
    /// Name of its label, if it has one.
    pub label: Option<&'static str>,
    /// Name of a second one.
    pub also: Option<&'static str>,
}

/// The text format, version 0.0.4.
#[derive(Debug, Default)]
pub struct Text {
    page: String,
    /// Labels of everything, as they stand between the braces.
    labels: String,
}

impl Text {
    /// An empty page with labels, names and values, of everything.
    pub fn with(labels: &[(&'static str, &str)]) -> Text {
        let labels: Vec<String> = labels.iter().map(|(name, value)| labelled(name, value)).collect();
        Text { page: String::new(), labels: labels.join(",") }
    }

    /// The page so far.
    pub fn finish(self) -> String {
        self.page
    }

    /// Begins a name.
    pub fn begin(&mut self, family: &Family<'_>) {
        let Family { name, kind, help, .. } = family;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {}", kind.name()));
    }

    /// One value of the name that was begun.
    pub fn value(&mut self, family: &Family<'_>, label: &str, value: impl Display) {
        let labels = braced(&self.labels(family, label));
        self.line(format_args!("{}{labels} {value}", family.name));
    }

    /// One value of the name that was begun, by two labels; `part` ends its name.
    pub fn value_of_two(&mut self, family: &Family<'_>, part: &str, [label, also]: [&str; 2], value: impl Display) {
        let more = family.also.map(|name| format!(",{}", labelled(name, also))).unwrap_or_default();
        let labels = braced(&format!("{}{more}", self.labels(family, label)));
        self.line(format_args!("{}{part}{labels} {value}", family.name));
    }

    /// One distribution of the name that was begun.
    pub fn distribution(&mut self, family: &Family<'_>, label: &str, read: &Distribution) {
        let name = family.name;
        let labels = self.labels(family, label);
        let more = if labels.is_empty() { String::new() } else { format!("{labels},") };
        let mut count = 0;
        let bounds = read.bounds.iter().map(|bound| read.unit.show(*bound).to_string());
        for (bound, here) in bounds.chain(["+Inf".to_owned()]).zip(&read.counts) {
            count += here;
            self.line(format_args!("{name}_bucket{{{more}le=\"{bound}\"}} {count}"));
        }
        let labels = braced(&labels);
        self.line(format_args!("{name}_sum{labels} {}\n{name}_count{labels} {count}", read.unit.show(read.sum)));
    }

    /// These quantiles of a distribution, each the bound that it stays within; without values they are no number.
    pub fn quantiles(&mut self, family: &Family<'_>, shares: &[f64], read: &Distribution) {
        let name = family.name;
        for share in shares {
            let value = match read.quantile(*share) {
                Some(bound) => read.unit.show(bound).to_string(),
                None if read.count() > 0 => "+Inf".to_owned(),
                None => "NaN".to_owned(),
            };
            self.value(family, &share.to_string(), value);
        }
        let labels = braced(&self.labels);
        self.line(format_args!(
            "{name}_sum{labels} {}\n{name}_count{labels} {}",
            read.unit.show(read.sum),
            read.count()
        ));
    }

    /// What stands between the braces behind a name: everybody's labels, and its own.
    fn labels(&self, family: &Family<'_>, label: &str) -> String {
        match family.label.map(|name| labelled(name, label)) {
            None => self.labels.clone(),
            Some(own) if self.labels.is_empty() => own,
            Some(own) => format!("{},{own}", self.labels),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A string takes whatever is written.
        let _ = self.page.write_fmt(line);
        self.page.push('\n');
    }
}

fn labelled(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", escaped(value))
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A table for people.
#[derive(Debug, Default)]
pub struct Table(String);

impl Table {
    /// The page so far.
    pub fn finish(self) -> String {
        self.0
    }

    /// A heading with a table under it.
    pub fn section(&mut self, title: &str) {
        // A string takes whatever is written.
        let _ = write!(self.0, "\n## {title}\n\n| name | kind | says |\n|---|---|---|\n");
    }

    /// One name; `bounds` of a histogram.
    pub fn row(&mut self, family: &Family<'_>, bounds: Option<(Unit, &[u64])>) {
        let also = family.also.map(|also| format!(",{also}")).unwrap_or_default();
        let label = family.label.map(|label| format!("{{{label}{also}}}")).unwrap_or_default();
        let bounds = match bounds {
            Some((unit, bounds)) => {
                let shown: Vec<String> = bounds.iter().map(|bound| unit.show(*bound).to_string()).collect();
                format!("; up to {}", shown.join(", "))
            }
            None => String::new(),
        };
        let help = family.help.replace('|', "\\|");
        let _ = writeln!(self.0, "| `{}{label}` | {} | {help}{bounds} |", family.name, family.kind.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    #[test]
    fn labels_and_helps_cannot_break_a_line() {
        let family = Family { name: "x_bytes", kind: Kind::Gauge, help: "a\nb\\c", label: Some("segment"), also: None };
        let mut text = Text::default();
        text.begin(&family);
        text.value(&family, "a\"b\\c\nd", 7);
        assert_eq!(
            text.finish(),
            "# HELP x_bytes a\\nb\\\\c\n# TYPE x_bytes gauge\nx_bytes{segment=\"a\\\"b\\\\c\\nd\"} 7\n"
        );
    }

    #[test]
    fn two_labels_stand_beside_those_of_everything() {
        let (label, also) = (Some("tier"), Some("op"));
        let family = Family { name: "x_seconds", kind: Kind::Summary, help: "x", label, also };
        let mut text = Text::with(&[("mode", "m")]);
        text.begin(&family);
        text.value_of_two(&family, "_sum", ["a\"b", "read"], 1.5);
        let expected = "# HELP x_seconds x\n# TYPE x_seconds summary\n\
                        x_seconds_sum{mode=\"m\",tier=\"a\\\"b\",op=\"read\"} 1.5\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn quantiles_are_bounds_and_no_numbers_where_there_is_nothing() {
        let family = Family { name: "x_us", kind: Kind::Summary, help: "x", label: Some("quantile"), also: None };
        let told = |values: &[u64]| {
            let histogram = Histogram::new(Unit::Microseconds, &[1_000, 2_000_000]);
            values.iter().for_each(|value| histogram.observe(*value));
            let mut text = Text::with(&[("mode", "m")]);
            text.quantiles(&family, &[0.5, 0.99], &histogram.read());
            text.finish()
        };
        let expected = "x_us{mode=\"m\",quantile=\"0.5\"} 1\nx_us{mode=\"m\",quantile=\"0.99\"} +Inf\n\
                        x_us_sum{mode=\"m\"} 3001.5\nx_us_count{mode=\"m\"} 3\n";
        assert_eq!(told(&[500, 1_000, 3_000_000]), expected);
        let expected = "x_us{mode=\"m\",quantile=\"0.5\"} NaN\nx_us{mode=\"m\",quantile=\"0.99\"} NaN\n\
                        x_us_sum{mode=\"m\"} 0\nx_us_count{mode=\"m\"} 0\n";
        assert_eq!(told(&[]), expected);
    }

    #[test]
    fn buckets_add_up() {
        let histogram = Histogram::new(Unit::Seconds, &[1_000, 2_000_000]);
        for value in [500, 1_000, 1_001, 3_000_000_000] {
            histogram.observe(value);
        }
        let family = Family { name: "x_seconds", kind: Kind::Histogram, help: "x", label: None, also: None };
        let mut text = Text::default();
        text.distribution(&family, "", &histogram.read());
        let expected = "x_seconds_bucket{le=\"0.000001\"} 2\nx_seconds_bucket{le=\"0.002\"} 3\n\
                        x_seconds_bucket{le=\"+Inf\"} 4\nx_seconds_sum 3.000002501\nx_seconds_count 4\n";
        assert_eq!(text.finish(), expected);
    }
}
