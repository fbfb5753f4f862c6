# source zig.sh VENV TRIPLE: cargo links for that triple by zig, and whatever compiles C for it does, if it is another
# architecture's.
export PATH="$1/bin:$PATH" ZIG_LINKER_TARGET=$2
if [ ! -d "$(rustc --print target-libdir --target "$2")" ]; then
  rustup target add "$2" >&2 || {
    echo "no Rust library for $2: \`rustup target add $2\`, or the distribution's package of it" >&2
    exit 1
  }
fi
zig_linker=$(realpath "$(dirname "${BASH_SOURCE[0]}")")/zig-linker
linker_variable=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$2")_LINKER
export "$linker_variable=$zig_linker"
if [ "${2%%-*}" != "$(uname -m)" ]; then
  export "CC_${2//-/_}=$zig_linker" "AR_${2//-/_}=python -m ziglang ar"
fi
