#include "formats/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace ebb {
namespace {

std::string reason(int code) { return std::generic_category().message(code); }

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : name_(printable(path.string())) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    fail(Exit::data, fmt::format("{}: cannot be opened: {}", name_, reason(errno)),
         "check that the file exists and may be read");
  }
  stream_.reset(::fdopen(fd, "rb"));
  if (!stream_) {
    const int code = errno;
    ::close(fd);
    fail(Exit::data, fmt::format("{}: cannot be opened: {}", name_, reason(code)));
  }
  struct stat status = {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    fail(Exit::data, fmt::format("{}: found something that is not a file", name_),
         "give a regular file");
  }
  size_ = status.st_size;
}

size_t InputFile::read(void* to, size_t bytes) {
  const size_t got = std::fread(to, 1, bytes, stream_.get());
  if (got < bytes && std::ferror(stream_.get())) {
    fail(Exit::data, fmt::format("{}: cannot be read: {}", name_, reason(errno)),
         "check the disk; the file may be damaged");
  }
  return got;
}

void InputFile::seek(int64_t place) {
  if (::fseeko(stream_.get(), place, SEEK_SET) == 0) return;
  fail(Exit::data, fmt::format("{}: cannot be read: {}", name_, reason(errno)),
       "check the disk; the file may be damaged");
}

std::string read_text_file(const std::filesystem::path& path, int64_t most_bytes, Exit code) try {
  InputFile file(path);
  if (file.size() > most_bytes) {
    fail(Exit::data, fmt::format("{}: found {} bytes, wanted at most {}", file.name(), file.size(),
                                 most_bytes));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  text.resize(file.read(text.data(), text.size()));
  return text;
} catch (const Error& e) {
  fail(code, e.what(), e.hint());
}

}  // namespace ebb
