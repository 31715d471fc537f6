#include "cli/run_again.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

// A file in memory for what a child writes: unlike a pipe it never has to be emptied in time.
class Capture {
 public:
  Capture() : file_(memfd_create("ebb-compare", MFD_CLOEXEC)) {
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  ~Capture() { close(file_); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  int file() const { return file_; }
  std::string text() const {
    std::string text(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
    const ssize_t got = pread(file_, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
    return text;
  }

 private:
  int file_;
};

}  // namespace

Ended run_again(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"ebb"};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  const Capture out, err;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {  // only what is safe between fork and exec
    // Ctrl-C reaches the whole process group; a signal to the parent alone must not leave the
    // child measuring for nobody.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(out.file(), STDOUT_FILENO);
    dup2(err.file(), STDERR_FILENO);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, out.text(), err.text()};
}

std::pair<std::string, std::string> error_and_hint(const Ended& ended) {
  const std::vector<std::string> lines = split(ended.err, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with("error: ")) continue;
    const std::string hint = i + 1 < lines.size() ? lines[i + 1] : "";
    return {lines[i].substr(7), hint.substr(std::min(hint.size(), hint.find_first_not_of(' ')))};
  }
  return {"", ""};
}

void fail_like(const Ended& ended, const std::string& what) {
  const auto [error, hint] = error_and_hint(ended);
  const auto code = static_cast<Exit>(ended.code);
  if (!error.empty()) fail(code, fmt::format("{}: {}", what, error), hint);
  std::fputs(ended.err.c_str(), stderr);
  fail(code, fmt::format("{}: the process that measured it ended with code {}", what, ended.code),
       ended.code == 128 + SIGKILL ? "the system may have run out of memory: try a smaller --batch"
                                   : "ebb bench with the same flags may tell more");
}

}  // namespace ebb
