#!/bin/bash
# packaging/machines_are_pure.sh: fails where a file of a machine/ folder names what a machine has not: sockets, files, threads,
# clocks, locks, the kernel, or its own driver. What runs there runs in virtual time too, where only the driver knows of the
# world. Of std, of the crates below and of their own crate machines name only what is on a list here.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(find crates/*/src/machine crates/*/src/machine.rs -name '*.rs' 2>/dev/null | sort)
[ ${#files[@]} -gt 0 ] || { echo "no machines found in $PWD" >&2; exit 2; }
exec perl - "${files[@]}" <<'PERL'
use strict;
use warnings;

my %allowed = (
    'std' => 'any borrow cell cmp collections convert error fmt future hash iter marker mem num ops pin rc slice str string'
        . ' task time vec sync::Arc sync::Weak sync::atomic',
    # Other machines, and modules of plain data.
    'crate' => 'machine error key reign segment_id wire Uuid',
    'mooncake_memory' => 'CopyError',
    'mooncake_transfer' => 'machine Fence ProcessGone Reign Uuid',
    'mooncake_wire' => 'message Feature KeysError UnpackedKeys FEATURES VERSION MAX_HELLO_FRAME STILL_POPULATED pack_keys unpack_groups'
        . ' unpack_keys',
);
my $never = qr/\b(?:Instant|SystemTime|Mutex|RwLock|Condvar|Barrier|OnceLock|LazyLock|thread_local|extern\s+crate)\b
    |\b(?:e?print(?:ln)?|dbg)!
    |\b(?:parking_lot|libc|rustix|socket2|tokio|mio|nix|crossbeam\w*|rand|getrandom|hyper|axum)\b
    |\buse\s+(?:::\s*)?(?:std|crate)\s*(?:;|as\b|::\s*\*)/x;

# The names of a path's next element: one, or those of the braces around it.
sub heads {
    my ($text) = @_;
    return $text =~ /^\s*(\w+|\*)((?:\s*::.*)?)/s ? ([$1, $2]) : () unless $text =~ /^\s*\{/;
    my ($depth, $item, @items) = (0, '');
    for my $char (split //, $text) {
        $depth++, next if $char eq '{' && !$depth;
        $depth++ if $char eq '{';
        last if $char eq '}' && !--$depth;
        if ($char eq ',' && $depth == 1) { push @items, $item; $item = ''; next }
        $item .= $char;
    }
    return map { /\S/ ? heads($_) : () } @items, $item;
}

sub faults {
    my ($path, $text) = @_;
    # Comments may speak of anything. Lines keep their numbers.
    $text =~ s{//[^\n]*}{}g;
    my (%faults, $at);
    my $fault = sub { my $line = 1 + (substr($text, 0, $_[0]) =~ tr/\n//); $faults{"$path:$line: $_[1]"} = 1 };
    $fault->($-[0], $&) while $text =~ /$never/g;
    for my $root (keys %allowed) {
        my %list = map { $_ => 1 } split ' ', $allowed{$root};
        while ($text =~ /(?<![\w:])(?:::)?$root\s*::\s*/g) {
            $at = $-[0];
            for my $head (heads(substr($text, pos($text), 2000))) {
                my ($name, $rest) = @$head;
                next if $list{$name};
                my @inner = $rest =~ /^\s*::(.*)/s ? heads($1) : ();
                next if @inner && !grep { !$list{"${name}::$_->[0]"} } @inner;
                $fault->($at, "${root}::$name");
            }
        }
    }
    # From machine/x.rs the second super is out, but not in its tests.
    my ($inside) = $path =~ m{/machine/(.*)$};
    my $depth = !defined $inside || $inside eq 'mod.rs' ? 0 : ($inside =~ tr{/}{}) + ($inside !~ m{/mod\.rs$});
    while ($text =~ /(?<![\w:])((?:super\s*::\s*)+)/g) {
        $at = $-[0];
        my $supers = () = $1 =~ /super/g;
        my $is_in_tests = substr($text, 0, $at) =~ /^(?:pub(?:\([a-z]+\))? )?mod \w+ \{/m;
        $fault->($at, 'super out of the machines') if $supers > $depth + ($is_in_tests ? 1 : 0);
    }
    my @faults = sort keys %faults;
    return @faults;
}

# What it is to find, and what not.
my @impure = (
    'use std::{collections::BTreeMap, thread, net::TcpStream};', 'use std::{fs, io};', "use std::{\n    cell,\n    io,\n};",
    'use std::io;', 'let name = std::env::var("X");', 'use std::sync::LazyLock;', 'use std::sync::{Arc, Mutex};',
    'use std::sync::{Arc, mpsc};', 'use std::time::{Duration, Instant};', 'use std as s;', 'use mooncake_memory::{CopyError, boot_id};',
    'mooncake_memory::random_bytes()', 'use mooncake_transfer::{Links, Uuid};', 'use crate::put::is_callers;',
    'use crate::segment_owner::SegmentId;', 'use crate::settings::Settings;', 'use crate::{error::Cause, store::check_key};',
    'use super::super::store::Inner;', 'println!("x");', 'use parking_lot::Mutex;',
);
my @pure = (
    'use std::{cell::Cell, rc::Rc};', 'use std::sync::{Arc, atomic::Ordering};', 'use std::time::Duration; // no std::io',
    'use crate::machine::call::{Call, Session};', 'use super::owner::Owner;', 'use mooncake_memory::CopyError;',
    "mod tests {\n    use super::super::fixture::rid;\n}",
);
faults('crates/x/src/machine/y.rs', $_) or die "this is not found: $_\n" for @impure;
my @wrong = map { faults('crates/x/src/machine/y.rs', $_) } @pure;
die "this is found: @wrong\n" if @wrong;

my @found = map {
    open my $file, '<', $_ or die "$_: $!\n";
    local $/;
    faults($_, <$file>)
} @ARGV;
exit 0 unless @found;
print "$_\n" for @found;
print STDERR "a state machine has no I/O, clock, lock or thread, and no driver: what is named above belongs there\n";
exit 1;
PERL
