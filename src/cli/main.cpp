// The thin program over libebb.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "cli/complain.h"
#include "cli/help.h"
#include "cli/ranks.h"
#include "cli/verbs.h"
#include "comm/launcher.h"

namespace ebb {
namespace {

struct Verb {
  const char* name;
  int (*run)(Settings);
  const char* summary;
  const char* example;
  int (*over_ranks)(Settings, Peers&) = nullptr;  // absent: it runs in one process
};

// In the order in which a person comes to need them.
constexpr Verb kVerbs[] = {
    {"plan", run_plan, "will it fit, how, at what speed; trains nothing",
     "ebb plan --model DiT-B/2 --batch 64 --memory 8G"},
    {"train", run_train, "train a model",
     "ebb train --data photos/ --image-size 64 --model DiT-S/8 --batch 64 \\\n"
     "      --steps 5000 --out runs/a",
     train_over_ranks},
    {"sample", run_sample, "draw pictures with a trained model",
     "ebb sample --from runs/a --classes 0,3,7 --count 16 --steps 50 \\\n"
     "      --guidance 4 --out grid.png",
     sample_over_ranks},
    {"prune", run_prune, "remove what matters least from a checkpoint; its state goes on",
     "ebb prune --from runs/a --heads 0.2 --mlp 0.5 --out p.safetensors\n"
     "  ebb prune --from runs/a --memory 2G --batch 64 --out p.safetensors"},
    {"convert", run_convert, "a checkpoint's weights for others, under the reference's names",
     "ebb convert --from runs/a --to weights.safetensors"},
    {"grad", run_grad, "loss and gradients of a given batch, to compare with other frameworks",
     "ebb grad --weights W.safetensors --batch-file B.safetensors \\\n      --out G.safetensors"},
    {"inspect", run_inspect, "what is in a run, a checkpoint, a batch file or a data folder",
     "ebb inspect photos/ --image-size 64 --out grid.png"},
    {"bench", run_bench, "the training step against this machine's own SGEMM",
     "ebb bench --model DiT-S/2 --batch 8", bench_over_ranks},
    {"compare", run_compare, "what each technique saves and costs, measured on this machine",
     "ebb compare --model DiT-S/2 --batch 32"},
    {"machine", run_machine, "what was measured of this machine; what plan --machine reads",
     "ebb machine --json > server.json"},
};

const Verb& find_verb(const std::string& word) {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) {
    if (word == verb.name) return verb;
    names.emplace_back(verb.name);
  }
  fail(Exit::usage, fmt::format("no verb '{}'{}", printable(word), did_you_mean(word, names)),
       "ebb --help lists them");
}

void print_usage() {
  fmt::print("ebb: trains Diffusion Transformers in the memory you have\n\n");
  for (const Verb& verb : kVerbs) fmt::print("  ebb {:<8} {}\n", verb.name, verb.summary);
  fmt::print("\nebb train --help (or -h) shows the settings of train; the same for every verb.\n");
}

void print_help(const Verb& verb) {
  fmt::print("ebb {}: {}\n\n  {}\n\n{}", verb.name, verb.summary, verb.example,
             settings_help(verb.name));
}

bool asks_for_help(const std::string& arg) { return arg == "--help" || arg == "-h"; }

int run(const std::vector<std::string>& args) {
  if (args.empty() || asks_for_help(args[0]) || (args[0] == "help" && args.size() == 1)) {
    print_usage();
    return args.empty() ? static_cast<int>(Exit::usage) : 0;
  }
  if (args[0] == "--version") {
    fmt::print("ebb {}\n", EBB_VERSION);
    return 0;
  }
  if (args[0] == "help") {
    print_help(find_verb(args[1]));
    return 0;
  }
  const Verb& verb = find_verb(args[0]);
  if (std::any_of(args.begin(), args.end(), asks_for_help)) {
    print_help(verb);
    return 0;
  }
  const std::vector<std::string> words(args.begin() + 1, args.end());
  if (launcher().size > 1) return run_over_ranks(verb.name, verb.over_ranks, words);
  return verb.run(parse_settings(args[0], words));
}

// What the system refused: stdout, a file or a thread.
int system_failed(const std::system_error& e) {
  if (e.code() == std::errc::broken_pipe) {
    return 128 + SIGPIPE;  // whoever read has seen enough, as `head` has: nothing to complain about
  }
  if (e.code() == std::errc::resource_unavailable_try_again) {
    return complain(Exit::disk, e.what(), "give fewer --threads, or raise the limit (ulimit -u)");
  }
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&e) != nullptr) {
    return complain(Error(Exit::disk, e.what()), "");
  }
  return complain(Exit::disk, e.what(), "the output could not be written: is its disk full?");
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  signal(SIGXFSZ, SIG_IGN);  // a file-size limit is reported like a full disk
  signal(SIGPIPE, SIG_IGN);
  using ebb::Exit;
  try {
    const int code = ebb::run({argv + 1, argv + argc});
    // A run that a closed terminal has ended cannot speak any more, and ended as it should.
    const bool interrupted = code > 128;
    if (std::fflush(stdout) != 0 && !interrupted)
      throw std::system_error(errno, std::generic_category(), "stdout");
    return code;
  } catch (const ebb::Error& e) {
    return ebb::complain(e, argc > 1 ? argv[1] : "");
  } catch (const std::bad_alloc&) {
    return ebb::complain(Exit::budget, "the system refused memory",
                         "choose a smaller model or batch");
  } catch (const std::system_error& e) {
    return ebb::system_failed(e);
  } catch (const std::exception& e) {
    ebb::complain(Exit::usage, std::string("a bug in ebb: ") + e.what(),
                  "please report it with the command");
    return 70;
  }
}
