#include "model/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "kernels/diffusion_tables.h"
#include "model/dit.h"
#include "model/slices.h"
#include "program/ahead.h"

namespace ebb {

namespace {

constexpr const char* kNames[] = {"ddpm", "ddim", "euler", "heun"};

bool is_diffusion(SamplerKind kind) {
  return kind == SamplerKind::ddpm || kind == SamplerKind::ddim;
}

class SamplerWriter {
 public:
  SamplerWriter(const DitConfig& config, const SamplerSpec& spec, const Device& device)
      : config_(config),
        spec_(spec),
        specs_(parameters(config)),
        parts_(parts_of(config, spec.place)),
        owners_(owners_by_name(specs_, spec)),
        b_(kSamplerProgram, device),
        messages_(b_, kSends),
        params_(b_, specs_, spec.storage, spec.weights_prefix,
                [&](const ParamSpec& p) { return !is_cut(p) && has(p, spec_.place.rank); }),
        image_({spec.batch, config.channels, config.image_size, config.image_size}) {
    for (const auto& [name, parts] : parts_) {
      const ParamSpec& own = parts[spec.place.part()];
      if (has(own, spec.place.rank)) params_.declare_part(b_, own);
    }
  }

  Program write() {
    const Buf x = b_.buffer(kSampleX, image_, Purpose::data);
    b_.input(x);
    if (config_.classes > 0) {
      y_ = b_.buffer(kSampleY, {spec_.batch}, Purpose::data, DType::i32);
      b_.input(y_);
    }
    const Buf next = b_.buffer(kSampleNext, image_);
    if (is_diffusion(spec_.kind)) {
      diffusion_step(x, next);
    } else {
      flow_step(x, next);
    }
    b_.output(next);
    messages_.wait_for_sends();
    const std::vector<Home> homes = this->homes();
    Program program = b_.finish();
    if (spec_.brings()) program = receive_ahead(std::move(program));
    return spec_.offload.moved(std::move(program), homes);
  }

 private:
  static constexpr size_t kSends = 3;

  static std::map<std::string, int> owners_by_name(const std::vector<ParamSpec>& specs,
                                                   const SamplerSpec& spec) {
    const std::vector<int> by_number = owners(specs, spec.place, spec.shard);
    std::map<std::string, int> by_name;
    for (const ParamSpec& p : specs) {
      if (p.trained()) by_name[p.name] = by_number[by_name.size()];
    }
    return by_name;
  }

  // Of each tensor of which ranks have parts, all of them.
  using Parts = std::map<std::string, std::vector<ParamSpec>>;
  static Parts parts_of(const DitConfig& config, RankPlace place) {
    Parts all;
    for (int part = 0; place.tensor > 1 && part < place.tensor; ++part) {
      place.rank = place.of_part(part);
      for (const ParamSpec& p : sliced_parameters(config, place)) {
        if (p.slice.any()) all[p.name].push_back(p);
      }
    }
    return all;
  }
  bool is_cut(const ParamSpec& p) const { return parts_.contains(p.name); }

  // Whether a rank of the step has what is drawn with, or its part of it.
  bool has(const ParamSpec& p, int rank) const {
    const RankPlace& place = spec_.place;
    if (place.stage_of(p.layer) != place.stage_of(rank)) return false;
    const bool of_owner =
        spec_.shard == Shard::weights || (spec_.shard == Shard::grads && spec_.averaged());
    if (!of_owner || !p.trained()) return true;
    return place.group_of(owners_.at(p.name)) == place.group_of(rank);
  }

  // A layer's weights, to all ranks.
  void bring(const std::string& layer) {
    const RankPlace& place = spec_.place;
    const int n = place.ranks(), before = (place.rank + n - 1) % n, next = (place.rank + 1) % n;
    for (const ParamSpec& p : specs_) {
      if (!spec_.brings() || p.layer != layer) continue;
      const bool here = has(p, place.rank), there = has(p, next);
      if (!is_cut(p)) {
        params_.bring(b_, messages_, p.name, {before, next, here, there});
        continue;
      }
      std::vector<Params::Part> parts;
      for (const ParamSpec& part : parts_.at(p.name)) {
        const int number = static_cast<int>(parts.size());
        parts.push_back({part,
                         {before, next, here && number == place.part(),
                          there && number == place.part_of(next)}});
      }
      params_.bring_parts(b_, messages_, parts);
    }
  }

  // By buffer: whether the step keeps it in the file.
  std::vector<Home> homes() const {
    std::vector<Home> homes(b_.program().buffers.size(), kOnDevice);
    for (const ParamSpec& whole : specs_) {
      const Buf part = params_.part(whole.name), weight = part ? part : params_.weight(whole.name);
      if (!b_.program().buffer(weight).resident) continue;
      const ParamSpec& spec = part ? parts_.at(whole.name)[spec_.place.part()] : whole;
      const bool average = b_.program().buffer(weight).purpose == Purpose::ema;
      const bool away =
          spec_.offload.covers(spec) && (average ? spec_.offload.state : spec_.offload.weights);
      homes[weight.id] = spec_.offload.home(away);
    }
    return homes;
  }

  bool guided() const { return spec_.guidance != 1 && config_.classes > 0; }

  void diffusion_step(Buf x, Buf next) {
    const bool noisy = spec_.kind == SamplerKind::ddpm;
    std::vector<Buf> reads = {x, network(x, 0)};
    if (noisy) {
      reads.push_back(b_.buffer("sample.noise", image_));
      b_.emit("sample.noise",
              FillNormal{spec_.batch, config_.channels * config_.pixels(), Stream::sampler_noise},
              {}, {reads.back()});
    }
    b_.emit("sample.step",
            DiffusionStep{spec_.batch, config_.channels, config_.pixels(), config_.learn_sigma,
                          noisy, spec_.clip},
            reads, {next});
  }

  void flow_step(Buf x, Buf next) {
    const auto step = [&](bool second, int first) {
      return FlowStep{spec_.batch,         config_.channels, config_.pixels(),
                      config_.learn_sigma, second,           first};
    };
    const Buf k1 = network(x, 0);
    if (spec_.kind == SamplerKind::euler) {
      b_.emit("sample.step", step(false, 0), {x, k1}, {next});
      return;
    }
    const Buf ahead = b_.buffer("sample.ahead", image_);
    b_.emit("sample.ahead", step(false, 0), {x, k1}, {ahead});
    const Buf k2 = network(ahead, 1);
    b_.emit("sample.step", step(true, 1), {x, k1, k2}, {next});
  }

  // The network's (guided) output at scalar time `index`.
  Buf network(Buf x, int index) {
    const auto scope = b_.scope(fmt::format("call{}", index));
    const int64_t B = guided() ? 2 * spec_.batch : spec_.batch;
    const Buf t = b_.buffer("time", {B});
    b_.emit("time", FillTime{B, index}, {}, {t});
    Buf input = x;
    Buf labels = y_;
    if (guided()) {
      Shape doubled = image_;
      doubled[0] = B;
      input = b_.buffer("input", doubled);
      b_.emit("input", Repeat{element_count(image_)}, {x}, {input});
      labels = b_.buffer("labels", {B}, Purpose::data, DType::i32);
      b_.emit("labels", LabelsAndNull{spec_.batch, config_.null_label()}, {y_}, {labels});
    }
    const Buf output =
        Dit(config_, B, params_).forward(b_, {input, t, labels}, [&](const std::string& layer) {
          bring(layer);
        });
    if (!guided()) return output;
    Shape single = b_.shape(output);
    single[0] = spec_.batch;
    const Buf made = b_.buffer("guided", single);
    const int64_t channels =
        spec_.guide_three_channels ? std::min<int64_t>(3, config_.channels) : config_.channels;
    b_.emit("guided", Guide{spec_.batch, config_.out_channels(), config_.pixels(), channels},
            {output}, {made});
    return made;
  }

  const DitConfig& config_;
  const SamplerSpec& spec_;
  const std::vector<ParamSpec> specs_;
  const Parts parts_;
  const std::map<std::string, int> owners_;
  Builder b_;
  Messages messages_;
  Params params_;
  const Shape image_;
  Buf y_;
};

std::vector<Scalars> diffusion_schedule(const SamplerSpec& spec) {
  const DiffusionTables& tables = diffusion_tables();
  const std::vector<int> times = respaced_steps(spec.steps);
  struct Step {
    double ac, previous, beta, variance;
  };
  std::vector<Step> steps;
  for (const int t : times) {
    const double previous = steps.empty() ? 1.0 : steps.back().ac;
    const double ac = tables.alphas_cumprod[t];
    const double beta = 1 - ac / previous;
    steps.push_back({ac, previous, beta, beta * (1 - previous) / (1 - ac)});
  }
  std::vector<Scalars> schedule;
  for (int i = spec.steps - 1; i >= 0; --i) {
    const Step& s = steps[i];
    Scalars scalars;
    scalars.guidance = spec.guidance;
    scalars.time[0] = static_cast<float>(times[i]);
    auto& c = scalars.coef;
    c[0] = static_cast<float>(1 / std::sqrt(s.ac));
    c[1] = static_cast<float>(std::sqrt(1 / s.ac - 1));
    if (spec.kind == SamplerKind::ddim) {
      c[2] = static_cast<float>(std::sqrt(s.previous));
      c[4] = static_cast<float>(std::sqrt(1 - s.previous));
    } else {
      c[2] = static_cast<float>(s.beta * std::sqrt(s.previous) / (1 - s.ac));
      c[3] = static_cast<float>((1 - s.previous) * std::sqrt(1 - s.beta) / (1 - s.ac));
      constexpr float kNoNoise = -1e4f;  // a log-variance whose exponential is 0
      const bool last = i == 0;
      c[5] = last ? kNoNoise : static_cast<float>(std::log(s.variance));
      c[6] = last ? kNoNoise : static_cast<float>(std::log(s.beta));
    }
    schedule.push_back(scalars);
  }
  return schedule;
}

std::vector<Scalars> flow_schedule(const SamplerSpec& spec) {
  std::vector<Scalars> schedule;
  for (int i = 0; i < spec.steps; ++i) {
    const double from = 1 - static_cast<double>(i) / spec.steps;
    const double to = 1 - static_cast<double>(i + 1) / spec.steps;
    Scalars scalars;
    scalars.guidance = spec.guidance;
    scalars.time = {static_cast<float>(from), static_cast<float>(to)};
    const auto whole = static_cast<float>(to - from);
    scalars.coef = {whole, whole / 2, whole / 2};
    schedule.push_back(scalars);
  }
  return schedule;
}

}  // namespace

const char* sampler_name(SamplerKind kind) { return kNames[static_cast<int>(kind)]; }

SamplerKind parse_sampler(const std::string& word) {
  for (int i = 0; i < 4; ++i) {
    if (word == kNames[i]) return static_cast<SamplerKind>(i);
  }
  fail(Exit::usage,
       fmt::format("--sampler: found '{}', wanted ddpm, ddim, euler or heun", printable(word)));
}

void validate(const SamplerSpec& spec, const DitConfig& config) {
  const bool flow = config.objective == Objective::flow;
  if (is_diffusion(spec.kind) == flow) {
    fail(Exit::usage,
         fmt::format("--sampler: {} does not fit a model trained with --objective {}",
                     sampler_name(spec.kind), flow ? "flow" : "ddpm"),
         flow ? "use --sampler euler or heun" : "use --sampler ddpm or ddim");
  }
  if (spec.steps < 1 || spec.steps > kDiffusionSteps) {
    fail(Exit::usage,
         fmt::format("sampler steps: found {}, wanted 1 to {}", spec.steps, kDiffusionSteps));
  }
  if (spec.guidance != 1 && config.classes == 0) {
    fail(Exit::usage, "--guidance: this model has no classes to guide by", "leave --guidance at 1");
  }
}

namespace {

Program write_start(const DitConfig& config, int64_t batch, const Device& device) {
  Builder b(kSamplerStart, device);
  const Buf next =
      b.buffer(kSampleNext, {batch, config.channels, config.image_size, config.image_size});
  b.emit("sample.start",
         FillNormal{batch, config.channels * config.pixels(), Stream::sampler_start}, {}, {next});
  b.output(next);
  return b.finish();
}

}  // namespace

std::vector<Program> sampler_programs(const DitConfig& config, const SamplerSpec& spec,
                                      const Device& device) {
  check_countable(config, spec.batch);
  std::vector<Program> programs;
  programs.push_back(write_start(config, spec.batch, device));
  programs.push_back(SamplerWriter(config, spec, device).write());
  return programs;
}

std::vector<Scalars> sampler_schedule(const SamplerSpec& spec) {
  return is_diffusion(spec.kind) ? diffusion_schedule(spec) : flow_schedule(spec);
}

}  // namespace ebb
