// The thin program over libebb.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <map>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "cli/verbs.h"

namespace ebb {
namespace {

struct Verb {
  int (*run)(Settings);
  const char* summary;
  const char* example;
};

const std::map<std::string, Verb> kVerbs = {
    {"plan",
     {run_plan, "will it fit, how, at what speed; trains nothing",
      "ebb plan --model DiT-B/2 --batch 64 --memory 8G"}},
    {"train",
     {run_train, "train a model",
      "ebb train --data photos/ --image-size 64 --model DiT-S/4 --batch 64 --steps 5000 --out "
      "runs/a"}},
    {"sample",
     {run_sample, "draw pictures with a trained model",
      "ebb sample --from runs/a --classes 0,3,7 --count 16 --steps 50 --guidance 4 --out "
      "grid.png"}},
    {"grad",
     {run_grad, "loss and every gradient of one batch, to compare with other frameworks",
      "ebb grad --weights W.safetensors --batch-file B.safetensors --out G.safetensors"}},
    {"inspect",
     {run_inspect, "what is in a run, a checkpoint, a batch file or a data folder",
      "ebb inspect photos/ --image-size 64 --out grid.png"}},
    {"bench",
     {run_bench, "the training step against this machine's own SGEMM",
      "ebb bench --model DiT-S/2 --batch 8"}},
    {"compare",
     {run_compare, "what each technique saves and costs, measured on this machine",
      "ebb compare --model DiT-S/2 --batch 32"}},
};

void print_usage() {
  fmt::print("ebb: trains Diffusion Transformers in the memory you have\n\n");
  for (const auto& [name, verb] : kVerbs) fmt::print("  ebb {:<8} {}\n", name, verb.summary);
  fmt::print("\nebb VERB --help shows the settings of a verb, with an example.\n");
}

void print_help(const std::string& name, const Verb& verb) {
  fmt::print("ebb {}: {}\n\n  {}\n\n", name, verb.summary, verb.example);
  for (const Setting& setting : settings_of(name)) {
    fmt::print(
        "  {:<30} {}\n",
        fmt::format("--{}{}{}", setting.name, setting.value.empty() ? "" : " ", setting.value),
        setting.help);
  }
}

int run(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "help") {
    print_usage();
    return args.empty() ? static_cast<int>(Exit::usage) : 0;
  }
  if (args[0] == "--version") {
    fmt::print("ebb {}\n", EBB_VERSION);
    return 0;
  }
  const auto found = kVerbs.find(args[0]);
  if (found == kVerbs.end()) {
    std::vector<std::string> names;
    for (const auto& [name, verb] : kVerbs) names.push_back(name);
    fail(Exit::usage,
         fmt::format("no verb '{}'{}", printable(args[0]), did_you_mean(args[0], names)),
         "ebb --help lists them");
  }
  for (const std::string& arg : args) {
    if (arg == "--help") {
      print_help(found->first, found->second);
      return 0;
    }
  }
  return found->second.run(parse_settings(args[0], {args.begin() + 1, args.end()}));
}

// The error: line and what to try. Where stderr itself cannot be written, the exit code still
// tells.
int complain(Exit code, const std::string& what, const std::string& hint) {
  const char* usual = code == Exit::usage  ? "ebb VERB --help shows what is wanted"
                      : code == Exit::data ? "ebb inspect PATH shows what is there"
                                           : "see the message above";
  std::fputs(fmt::format("error: {}\n  {}\n", what, hint.empty() ? usual : hint).c_str(), stderr);
  return static_cast<int>(code);
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
    return ebb::complain(e.code(), e.what(), e.hint());
  } catch (const std::bad_alloc&) {
    return ebb::complain(Exit::budget, "the system refused memory",
                         "choose a smaller model or batch");
  } catch (const std::system_error& e) {
    return ebb::complain(Exit::disk, e.what(),
                         "the output could not be written: is its disk full?");
  } catch (const std::exception& e) {
    ebb::complain(Exit::usage, std::string("a bug in ebb: ") + e.what(),
                  "please report it with the command");
    return 70;
  }
}
