#include "cli/watched.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "base/text.h"
#include "cli/drawing_progress.h"
#include "cli/ranks.h"
#include "cli/signals.h"
#include "cli/status_line.h"
#include "report/plan_report.h"
#include "state/checkpoint.h"
#include "train/rank_seconds.h"

namespace ebb {

namespace {

constexpr const char* kStopping = "stopping after this step; again to stop at once\n";

// How far the run is: on a terminal one line that is rewritten; elsewhere a plain line at the first
// step, every `every` steps, at the last, and in between so that no half minute passes without.
// `every` 0: nothing but on a terminal.
class Console : public RunSink {
 public:
  Console(int64_t steps, int64_t every) : steps_(steps), every_(every) {}

  void started(const RunStarted& start) override {
    done_ = start.done;
    const TrainOptions& o = start.options;
    const PlanReport report = describe(o.name, o.config, start.planned, o.budget_bytes, o.outlook);
    fmt::print("{}: {} parameters, batch {}, {} samples ({})\n", report.model, report.params,
               report.batch, start.data.count, start.data.kind);
    for (const std::string& note : start.data.notes) fmt::print("data: {}\n", note);
    for (const std::string& note : start.notes) fmt::print("{}\n", note);
    fmt::print("{}\n", memory_line(report));
    if (report.away_bytes > 0) fmt::print("on disk: {}\n", format_size(report.away_bytes));
    fmt::print("{}\n", techniques_line(report));
    fmt::print("{}", outlook_lines(o.outlook, done_, ""));
    if (!o.fewer_pictures.empty()) fmt::print("{}\n", o.fewer_pictures);
    if (!o.from.empty()) {
      fmt::print("goes on with {}, after step {}\n", printable(o.from.string()), done_);
    } else if (done_ > 0) {
      fmt::print("resumed after step {}\n", done_);
    }
    for (const std::string& note : start.converted) fmt::print("{}\n", note);
    std::fflush(stdout);
    start_ = std::chrono::steady_clock::now();
    cadence_.emplace();
    line_.emplace();
  }

  void step(const StepRecord& r) override {
    drawing_.reset();
    rank_means_.add(r.ranks);
    const bool last = r.step == steps_;
    const bool in_time = cadence_->due();  // asked each time: it counts from the line before
    const bool plain = every_ > 0 && (last || r.step % every_ == 0 || in_time);
    // Pictures and checkpoints take time too: what has passed in all is what the rest will be like.
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double left =
        passed.count() / static_cast<double>(r.step - done_) * static_cast<double>(steps_ - r.step);
    line_->show(
        {{fmt::format("step {}/{}", r.step, steps_), 1},
         {fmt::format("loss {:.4f}", r.loss), 2},
         {fmt::format("norm {:.3f}", r.grad_norm), 5},
         {format_rate(r.images_per_second), 4},
         {format_size(r.process_peak_bytes), 6},
         {last ? format_seconds(passed.count()) + " in all" : format_seconds(left) + " left", 3}},
        plain, last);
  }

  // Where the time of a step has gone on several ranks.
  void note_ranks() {
    for (const std::string& line : rank_lines(rank_means_.means())) note(line);
  }

  // A line of its own, without breaking the one that is rewritten.
  void note(const std::string& line) override { line_->say(line); }

  void drawing(const DrawingRecord& record) override {
    if (!drawing_) drawing_.emplace(*line_, true);
    drawing_->show(record);
  }

 private:
  const int64_t steps_, every_;
  int64_t done_ = 0;
  std::chrono::steady_clock::time_point start_;
  // There from the start of the run on.
  std::optional<Cadence> cadence_;
  std::optional<StatusLine> line_;
  std::optional<DrawingProgress> drawing_;
  RankMeans rank_means_;
};

// Where everything is, and what to type next.
std::vector<std::string> closing_lines(const TrainOptions& o, const Source& source, int64_t done) {
  const auto saved = newest_checkpoint(o.out);
  std::vector<std::string> lines = {fmt::format(
      "done: {} steps; {}", done, saved ? "checkpoint " + saved->string() : "nothing was saved")};
  const bool draws = o.sample_every > 0;
  if (draws) lines.push_back(fmt::format("pictures: {}/", (o.out / "samples").string()));
  if (!saved) return lines;
  std::string how;
  if (draws) how += fmt::format(" --steps {}", o.sampler->steps);
  if (draws && o.config.classes > 0) how += fmt::format(" --guidance {}", o.sampler->guidance);
  const auto grid = o.out / (source.info().pixels ? "grid.png" : "latents.npy");
  lines.push_back(fmt::format("draw more: {} sample --from {} --count 8{} --out {}",
                              shell_word(program_invocation_name), shell_word(o.out.string()), how,
                              shell_word(grid.string())));
  return lines;
}

}  // namespace

int train_watched(const TrainOptions& options, const Source& source, PlannedRun planned,
                  const Machine& machine, Peers* peers) {
  catch_stop_signals(kStopping);
  const RunControl control{[] { return stop_signal() != 0; }, note_saving};
  Console console(options.steps, options.log_every);
  const bool speaks = peers == nullptr || peers->rank() == 0;
  std::vector<RunSink*> sinks;
  if (speaks) sinks.push_back(&console);
  Trained trained;
  try {
    trained = train(options, source, std::move(planned), machine, sinks, control, peers);
  } catch (const std::system_error&) {  // nobody reads what it says any more
    if (stop_signal() == 0) throw;
    return 128 + stop_signal();
  }
  if (speaks) console.note_ranks();
  if (trained.stopped) {
    const int signal = agreed_signal(peers);
    if (speaks) {
      console.note(fmt::format("stopped by signal {} after step {}; --resume goes on from there",
                               signal, trained.steps));
    }
    return 128 + signal;
  }
  if (!speaks) return 0;
  for (const std::string& line : closing_lines(options, source, trained.steps)) console.note(line);
  return 0;
}

}  // namespace ebb
