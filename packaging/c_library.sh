#!/bin/bash
# c_library.sh LIBRARY PREFIX: the transfer engine for C below PREFIX: library, header, pkg-config and CMake files, all of which find
# each other by their places, so that PREFIX may be moved. STRIP=true leaves the library as it is.
set -euo pipefail
library=$1 prefix=$2
source=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$source/Cargo.toml" | head -1)
cmake=$prefix/lib/cmake/transfer_engine

mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$cmake"
install -m 755 "$library" "$prefix/lib/libtransfer_engine.so"
"${STRIP:-strip}" --strip-unneeded "$prefix/lib/libtransfer_engine.so"
install -m 644 "$source/crates/mooncake-transfer-engine-c/include/transfer_engine_c.h" "$prefix/include/"

cat > "$prefix/lib/pkgconfig/transfer_engine.pc" <<END
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: transfer_engine
Description: Transfer engine for C: peers read and write each other's registered memory
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -ltransfer_engine
END

cat > "$cmake/transfer_engine-config.cmake" <<'END'
# find_package(transfer_engine) gives the target transfer_engine::transfer_engine.
get_filename_component(_transfer_engine_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET transfer_engine::transfer_engine)
  add_library(transfer_engine::transfer_engine SHARED IMPORTED)
  set_target_properties(transfer_engine::transfer_engine PROPERTIES
    IMPORTED_LOCATION "${_transfer_engine_prefix}/lib/libtransfer_engine.so"
    IMPORTED_SONAME "libtransfer_engine.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_transfer_engine_prefix}/include")
endif()
unset(_transfer_engine_prefix)
END

cat > "$cmake/transfer_engine-config-version.cmake" <<END
set(PACKAGE_VERSION "$version")
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
END
