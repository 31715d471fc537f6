# What ./demo and ./check share: packages and the build. Sourced, from the repository's root.

packages="g++ cmake ninja-build pkg-config libdnnl-dev libfmt-dev nlohmann-json3-dev
  libtomlplusplus-dev zlib1g-dev libpng-dev libjpeg-dev libwebp-dev
  libgif-dev libxxhash-dev dataset-fashion-mnist"
# clang is version 14 in Debian 12: it formats, checks and fuzzes, and builds nothing else.
test_packages="libgtest-dev libzip-dev libbenchmark-dev clang clang-format clang-tidy
  libclang-rt-14-dev libomp-dev mpich libmpich-dev openmpi-bin libopenmpi-dev"

# say WORDS: a heading, with the minutes and seconds since the start.
say() { printf '\n== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# install_packages NAME...: those that are not there yet, with apt.
install_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo)
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# build FOLDER TARGETS... -- CMAKE_OPTIONS...
build() {
  local folder=$1 targets=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do targets+=("$1"); shift; done
  shift || true
  say "building ${targets[*]} in $folder"
  cmake -S . -B "$folder" -G Ninja "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; return 1; }
  # One line a file only when something is wrong.
  cmake --build "$folder" --target "${targets[@]}" >>"$folder.log" 2>&1 ||
    { tail -n 60 "$folder.log"; return 1; }
  mv "$folder.log" "$folder/build.log"
}
