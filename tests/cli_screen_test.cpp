// What a person sees: the line that is rewritten on a terminal, plain lines elsewhere, how a run
// ends, and output whose reader goes away.
#include <sys/ioctl.h>

#include <thread>

#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

// A terminal of some width that remembers what was written to it.
class Terminal {
 public:
  explicit Terminal(int columns) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    grantpt(master_);
    unlockpt(master_);
    name_ = ptsname(master_);
    hold_ = open(name_.c_str(), O_RDWR | O_NOCTTY);  // reading ends when the last one closes it
    const winsize size = {24, static_cast<unsigned short>(columns), 0, 0};
    ioctl(master_, TIOCSWINSZ, &size);
    reader_ = std::thread([this] {
      char part[4096];
      for (ssize_t got; (got = read(master_, part, sizeof(part))) > 0;) text_.append(part, got);
    });
  }
  ~Terminal() { text(); }

  const char* name() const { return name_.c_str(); }
  // What was written, once everyone who writes has ended.
  const std::string& text() {
    if (!reader_.joinable()) return text_;
    close(hold_);
    reader_.join();
    close(master_);
    return text_;
  }

 private:
  int master_, hold_;
  std::string name_, text_;
  std::thread reader_;
};

class CliScreen : public CliTest {
 protected:
  CliScreen() {
    write_idx();
    setenv("TERM", "xterm", 1);
  }
  // What the program writes to a terminal of this width, line by line as it is rewritten.
  std::vector<std::string> lines_on_terminal(const Args& args, int columns) const {
    Terminal terminal(columns);
    Launch launch = launch_;
    launch.out = terminal.name();
    const Result result = run(args, launch);
    EXPECT_EQ(result.code, 0) << result.story();
    std::vector<std::string> lines = {""};
    for (const char c : terminal.text()) {
      if (c == '\r' || c == '\n') {
        lines.emplace_back();
      } else {
        lines.back() += c;
      }
    }
    for (std::string& line : lines) {
      if (line.starts_with("\033[K")) line.erase(0, 3);
    }
    return lines;
  }
  static std::vector<std::string> starting_with(const std::string& word,
                                                const std::vector<std::string>& lines) {
    std::vector<std::string> found;
    for (const std::string& line : lines) {
      if (line.starts_with(word)) found.push_back(line);
    }
    return found;
  }
  // As a shell runs it, after whoever reads its output has gone.
  int code_without_reader(const std::string& words) const {
    const char* other = std::getenv("EBB_BINARY");
    const std::string program = other ? other : EBB_BINARY;
    const std::string script = "cd " + folder_.string() +
                               " && EBB_CALIBRATION=" + launch_.calibration +
                               " OMP_NUM_THREADS=1 bash -c '(sleep 0.3; exec " + program + " " +
                               words + " 2> err.txt) | true; exit ${PIPESTATUS[0]}'";
    const int status = std::system(script.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(CliScreen, TheLineOfATrainingRunFitsEveryTerminal) {
  for (const int columns : {200, 80, 40, 12}) {
    SCOPED_TRACE(columns);
    const std::string out = "run" + std::to_string(columns);
    const auto lines = starting_with(
        "step ", lines_on_terminal(training(out, {"--steps", "20", "--save-every", "0"}), columns));
    ASSERT_FALSE(lines.empty());
    for (const std::string& line : lines) EXPECT_LT(line.size(), static_cast<size_t>(columns));
    EXPECT_TRUE(contains(lines.back(), "step 20/20")) << lines.back();
    EXPECT_EQ(contains(lines.back(), "loss"), columns >= 40) << lines.back();
    EXPECT_EQ(contains(lines.back(), "MiB"), columns >= 80) << lines.back();
  }
}

TEST_F(CliScreen, AFileSeesTheFirstStepAndTheLast) {
  const std::string out =
      succeed(training("run", {"--steps", "7", "--save-every", "0", "--log-every", "1000"})).out;
  EXPECT_TRUE(contains(out, "\nstep 1/7 ")) << out;
  EXPECT_TRUE(contains(out, "\nstep 7/7 ")) << out;
  EXPECT_FALSE(contains(out, "\r")) << out;
}

TEST_F(CliScreen, LogEveryZeroKeepsAFileFreeOfSteps) {
  const std::string out =
      succeed(training("run", {"--steps", "3", "--save-every", "0", "--log-every", "0"})).out;
  EXPECT_FALSE(contains(out, "step 1/")) << out;
  EXPECT_FALSE(contains(out, "step 3/")) << out;
}

TEST_F(CliScreen, ARunEndsWithWhereThingsAreAndACommandThatWorks) {
  const std::string out = succeed(training("my run", {"--steps", "2", "--sample-every", "2",
                                                      "--sample-steps", "2", "--count", "1"}))
                              .out;
  EXPECT_TRUE(contains(out, "my run/checkpoints/step-000000002.safetensors")) << out;
  EXPECT_TRUE(contains(out, "my run/samples/")) << out;
  const std::string before = "draw more: ";
  const size_t begin = out.find(before);
  ASSERT_NE(begin, std::string::npos) << out;
  const std::string command = out.substr(begin + before.size());
  const std::string in_folder = "cd " + folder_.string() + " && " + command;
  EXPECT_EQ(std::system(in_folder.c_str()), 0) << command;
  EXPECT_TRUE(fs::exists(at("my run/grid.png"))) << command;
}

TEST_F(CliScreen, ARunWithoutCheckpointsSaysSo) {
  const std::string out = succeed(training("run", {"--steps", "2", "--save-every", "0"})).out;
  EXPECT_TRUE(contains(out, "done: 2 steps; nothing was saved")) << out;
  EXPECT_FALSE(contains(out, "draw more")) << out;
}

TEST_F(CliScreen, DrawingTellsHowFarItIs) {
  succeed(training("run", {"--steps", "1"}));
  const Args draw = {"sample",  "--from", "run",   "--count", "3",          "--steps", "4",
                     "--batch", "2",      "--out", "g.png",   "--guidance", "1"};
  const std::string out = succeed(draw).out;
  EXPECT_TRUE(contains(out, "0/12 drawn  step 1/4 of the next 2")) << out;
  EXPECT_TRUE(contains(out, " left\n")) << out;
  for (const int columns : {80, 14}) {
    const auto lines = lines_on_terminal(draw, columns);
    bool whole = false;
    for (const std::string& line : lines) {
      if (!contains(line, "drawn")) continue;
      EXPECT_LT(line.size(), static_cast<size_t>(columns)) << line;
      whole = whole || contains(line, "12/12 drawn");
    }
    EXPECT_TRUE(whole);
    EXPECT_EQ(starting_with("wrote g.png", lines).size(), 1u);
  }
}

TEST_F(CliScreen, NothingIsDrawnForAPlaceThatCannotBeWritten) {
  succeed(training("run", {"--steps", "1"}));
  for (const char* out : {"/proc/g.png", "/proc/folder", "no/g.png", "idx/g.npy/g.png"}) {
    const Result result = run({"sample", "--from", "run", "--out", out});
    expect_refused(result, 5, {out});
    EXPECT_FALSE(contains(result.out, "samples after step")) << result.story();
  }
}

TEST_F(CliScreen, AReaderThatHasSeenEnoughIsNoError) {
  EXPECT_EQ(code_without_reader("train --help"), 141);
  EXPECT_EQ(code_without_reader("plan --width 16 --depth 1 --heads 2 --patch 4 --batch 1"), 141);
  EXPECT_EQ(file("err.txt"), "");
}

// Hours of work do not end because nobody watches.
TEST_F(CliScreen, ARunGoesOnWhenItsReaderHasLeft) {
  EXPECT_EQ(
      code_without_reader("train --data idx --out run --batch 4 --width 16 --depth 1 --heads 2 "
                          "--patch 4 --sample-every 0 --steps 100 --log-every 1"),
      0);
  EXPECT_EQ(file("err.txt"), "");
  EXPECT_EQ(log("run").size(), 100u);
  EXPECT_TRUE(fs::exists(checkpoint("run", 100)));
}

}  // namespace
}  // namespace ebb::cli_fixture
