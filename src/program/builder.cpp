#include "program/builder.h"

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

Buf Builder::buffer(const std::string& name, Shape shape, Purpose purpose, DType type) {
  return declare({prefix_ + name, layer_, purpose, type, std::move(shape), false});
}

Buf Builder::declare(Buffer buffer) {
  require(names_.insert(buffer.name).second, "program {}: two buffers named {}", program_.name,
          buffer.name);
  buffer.bytes();  // an absurd size is refused here, with its shape
  program_.buffers.push_back(std::move(buffer));
  return Buf{static_cast<int32_t>(program_.buffers.size() - 1)};
}

void Builder::emit(const std::string& name, OpParams params, std::vector<Buf> reads,
                   std::vector<Buf> writes, std::vector<Buf> updates) {
  Op op{prefix_ + name,     layer_, std::move(params), std::move(reads), std::move(writes),
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
