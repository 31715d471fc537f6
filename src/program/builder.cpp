#include "program/builder.h"

#include <fmt/format.h>

#include "base/error.h"
#include "program/signature.h"

namespace ebb {

Builder::Scope::Scope(Builder& b, const std::string& name)
    : b_(b), prefix_length_(b.prefix_.size()), outermost_(b.prefix_.empty()) {
  if (outermost_) b_.layer_ = name;
  b_.prefix_ += name + ".";
}

Builder::Scope::~Scope() {
  b_.prefix_.resize(prefix_length_);
  if (outermost_) b_.layer_ = "step";
}

Builder::Repeated::Repeated(Builder& b, int64_t count) : b_(b) {
  require(!b.in_loop(), "program {}: a loop within a loop", b.program_.name);
  b_.loop_ = {static_cast<int>(b.program_.ops.size()), 0, count};
}

Builder::Repeated::~Repeated() {
  b_.loop_.end = static_cast<int>(b_.program_.ops.size());
  if (b_.loop_.count > 1 && b_.loop_.end > b_.loop_.begin) b_.program_.loops.push_back(b_.loop_);
  b_.loop_ = {};
}

std::string Builder::unique(const std::string& name) {
  while (true) {
    const int times = ++names_[name];
    if (times == 1) return name;
    std::string numbered = fmt::format("{}~{}", name, times);
    if (names_.emplace(numbered, 1).second) return numbered;
  }
}

Buf Builder::buffer(const std::string& name, Shape shape, Purpose purpose, DType type) {
  return declare_numbered({prefix_ + name, layer_, purpose, type, std::move(shape)});
}

Buf Builder::declare_numbered(Buffer buffer) {
  buffer.name = unique(buffer.name);
  names_[buffer.name] = 0;
  return declare(std::move(buffer));
}

Buf Builder::lasting(const std::string& name, Shape shape, DType type, Purpose purpose) {
  if (!in_loop() || !stack_lasting_) return buffer(name, std::move(shape), purpose, type);
  Shape all = shape;
  all[0] *= loop_.count;
  const int64_t count = element_count(shape);
  return view(buffer(name, std::move(all), purpose, type), std::move(shape), 0, count);
}

Buf Builder::view(Buf of, Shape shape, int64_t offset, int64_t stride) {
  const Buffer& whole = program_.buffer(of);
  require(!whole.is_view(), "program {}: {} is a view already", program_.name, whole.name);
  const int64_t end = offset + (loop_.count - 1) * stride + element_count(shape);
  require(offset >= 0 && stride >= 0 && end <= whole.count(),
          "program {}: a view of {} ends at element {} of {}", program_.name, whole.name, end,
          whole.count());
  const int64_t size = dtype_bytes(whole.type);
  Buffer made{unique(whole.name + "[]"), whole.layer, whole.purpose, whole.type, std::move(shape)};
  made.view = {of, offset * size, stride * size};
  program_.buffers.push_back(std::move(made));
  return Buf{static_cast<int32_t>(program_.buffers.size() - 1)};
}

Buf Builder::declare(Buffer buffer) {
  require(++names_[buffer.name] == 1, "program {}: two buffers named {}", program_.name,
          buffer.name);
  buffer.bytes();  // an absurd size is refused here, with its shape
  program_.buffers.push_back(std::move(buffer));
  return Buf{static_cast<int32_t>(program_.buffers.size() - 1)};
}

void Builder::emit(const std::string& name, OpParams params, std::vector<Buf> reads,
                   std::vector<Buf> writes, std::vector<Buf> updates) {
  Op op{prefix_ + name,     layer_, params, std::move(reads), std::move(writes),
        std::move(updates), {}};
  check_signature(op);
  if (const int64_t bytes = device_.scratch_bytes(op.params); bytes > 0) {
    op.scratch = buffer(name + ".scratch", {bytes}, Purpose::scratch, DType::u8);
  }
  program_.ops.push_back(std::move(op));
}

void Builder::check_signature(const Op& op) const {
  const Signature wanted = signature(op.params);
  const auto compare = [&](const char* role, const std::vector<Arg>& args,
                           const std::vector<Buf>& found) {
    require(args.size() == found.size(), "op {} ({}): {} {} given, {} wanted", op.name, op.kind(),
            found.size(), role, args.size());
    for (size_t i = 0; i < args.size(); ++i) {
      const Buffer& b = program_.buffer(found[i]);
      const int64_t count = element_count(args[i].shape);
      require(
          b.type == args[i].type && (b.count() == count || (args[i].or_more && b.count() > count)),
          "op {} ({}): {} is {} {}{}, wanted {}{}", op.name, op.kind(), args[i].name, b.name,
          dtype_name(b.type), shape_text(b.shape), dtype_name(args[i].type),
          shape_text(args[i].shape));
    }
  };
  compare("reads", wanted.reads, op.reads);
  compare("writes", wanted.writes, op.writes);
  compare("updates", wanted.updates, op.updates);
}

}  // namespace ebb
