//! Two ways to tell metrics.

use std::fmt::Display;

use crate::exposition::{Family, Kind, Table, Text};
use crate::histogram::Distribution;

/// A page that is being written: both are told by the same code, so that neither has what the other has not.
#[derive(Debug)]
pub struct Page(Form);

#[derive(Debug)]
enum Form {
    Text(Text),
    Table(Table),
}

impl Page {
    /// The text format, version 0.0.4; the labels, names and values, are told with everything.
    pub fn text(labels: &[(&'static str, &str)]) -> Page {
        Page(Form::Text(Text::with(labels)))
    }

    /// The reference.
    pub fn table() -> Page {
        Page(Form::Table(Table::default()))
    }

    /// Whether it is the reference, which lists what there can be.
    pub fn is_reference(&self) -> bool {
        matches!(self.0, Form::Table(_))
    }

    /// The whole.
    pub fn finish(self) -> String {
        match self.0 {
            Form::Text(text) => text.finish(),
            Form::Table(table) => table.finish(),
        }
    }

    /// A heading, in the reference.
    pub fn section(&mut self, title: &str) {
        if let Form::Table(table) = &mut self.0 {
            table.section(title);
        }
    }

    /// A counter.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.one(&Family { name, kind: Kind::Counter, help, label: None, also: None }, Some(value));
    }

    /// A value as of now.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.gauge_if(name, help, Some(value));
    }

    /// A value as of now, where there is one.
    pub fn gauge_if(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        self.one(&Family { name, kind: Kind::Gauge, help, label: None, also: None }, value);
    }

    fn one(&mut self, family: &Family<'_>, value: Option<impl Display>) {
        match &mut self.0 {
            Form::Text(text) => {
                text.begin(family);
                if let Some(value) = value {
                    text.value(family, "", value);
                }
            }
            Form::Table(table) => table.row(family, None),
        }
    }

    /// Values by label.
    pub fn labelled<'v, V: Display>(
        &mut self,
        kind: Kind,
        name: &str,
        label: &'static str,
        help: &str,
        values: impl IntoIterator<Item = (&'v str, V)>,
    ) {
        let family = Family { name, kind, help, label: Some(label), also: None };
        match &mut self.0 {
            Form::Text(text) => {
                text.begin(&family);
                for (label, value) in values {
                    text.value(&family, label, value);
                }
            }
            Form::Table(table) => table.row(&family, None),
        }
    }

    /// Values by two labels.
    pub fn labelled_twice<'v>(
        &mut self,
        kind: Kind,
        name: &str,
        [label, also]: [&'static str; 2],
        help: &str,
        values: impl IntoIterator<Item = ([&'v str; 2], u64)>,
    ) {
        let family = Family { name, kind, help, label: Some(label), also: Some(also) };
        match &mut self.0 {
            Form::Text(text) => {
                text.begin(&family);
                values.into_iter().for_each(|(labels, value)| text.value_of_two(&family, "", labels, value));
            }
            Form::Table(table) => table.row(&family, None),
        }
    }

    /// How many there were, and how many seconds they took together, by two labels.
    pub fn seconds_by_two<'v>(
        &mut self,
        name: &str,
        [label, also]: [&'static str; 2],
        help: &str,
        values: impl IntoIterator<Item = ([&'v str; 2], u64, f64)>,
    ) {
        let family = Family { name, kind: Kind::Summary, help, label: Some(label), also: Some(also) };
        match &mut self.0 {
            Form::Text(text) => {
                text.begin(&family);
                for (labels, count, seconds) in values {
                    text.value_of_two(&family, "_sum", labels, seconds);
                    text.value_of_two(&family, "_count", labels, count);
                }
            }
            Form::Table(table) => table.row(&family, None),
        }
    }

    /// A distribution.
    pub fn histogram(&mut self, name: &str, help: &str, read: &Distribution) {
        let family = Family { name, kind: Kind::Histogram, help, label: None, also: None };
        self.distributions(&family, [("", read)].into_iter());
    }

    /// The median, the ninth tenth and the last hundredth of a distribution, as the bounds that they stay within.
    pub fn quantiles(&mut self, name: &str, help: &str, read: &Distribution) {
        let family = Family { name, kind: Kind::Summary, help, label: Some("quantile"), also: None };
        match &mut self.0 {
            Form::Text(text) => {
                text.begin(&family);
                text.quantiles(&family, &[0.5, 0.9, 0.99], read);
            }
            Form::Table(table) => table.row(&family, Some((read.unit, read.bounds))),
        }
    }

    /// Distributions by label.
    pub fn histograms<'v>(
        &mut self,
        name: &str,
        label: &'static str,
        help: &str,
        reads: impl Iterator<Item = (&'v str, &'v Distribution)>,
    ) {
        let family = Family { name, kind: Kind::Histogram, help, label: Some(label), also: None };
        self.distributions(&family, reads);
    }

    fn distributions<'v>(&mut self, family: &Family<'_>, mut reads: impl Iterator<Item = (&'v str, &'v Distribution)>) {
        match &mut self.0 {
            Form::Text(text) => {
                text.begin(family);
                for (label, read) in reads {
                    text.distribution(family, label, read);
                }
            }
            Form::Table(table) => table.row(family, reads.next().map(|(_, read)| (read.unit, read.bounds))),
        }
    }
}
