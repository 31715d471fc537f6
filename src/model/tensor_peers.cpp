#include "model/tensor_peers.h"

namespace ebb {

TensorPeers::TensorPeers(Builder& b, const RankPlace& place)
    : b_(b), place_(place), messages_(b, static_cast<size_t>(place.tensor)) {}

template <typename Body>
void TensorPeers::each_other(Body body) const {
  for (int part = 0; part < place_.tensor; ++part) {
    if (part != place_.part()) body(part);
  }
}

// A view of its own for each message, of a view too.
Buf TensorPeers::elements(Buf of, const Share& some) {
  const Buffer& buffer = b_.program().buffer(of);
  const View view = buffer.is_view() ? buffer.view : View{of};
  const int64_t size = dtype_bytes(buffer.type);
  return b_.view(view.of, {some.count}, view.offset / size + some.first, view.stride / size);
}

// All begin everything before anybody waits.
void TensorPeers::exchange(const std::vector<Message>& in, const std::vector<Message>& out) {
  for (const Message& m : in) messages_.receive_begin(m);
  for (const Message& m : out) messages_.send(m);
  for (const Message& m : in) messages_.receive_end(m);
  messages_.wait_for_sends();
}

void TensorPeers::sum(const std::string& name, Buf x) {
  const int64_t count = element_count(b_.shape(x));
  const Share own = piece(count, place_.part());
  std::vector<Buf> others(place_.tensor);
  std::vector<Message> in, out;
  Buf parts;
  if (own.count > 0) {
    parts = b_.buffer(name + ".parts", {(place_.tensor - 1) * own.count}, Purpose::exchange);
  }
  each_other([&](int part) {
    const Share theirs = piece(count, part);
    const int peer = place_.of_part(part);
    if (own.count > 0) {
      others[part] = elements(parts, {std::ssize(in) * own.count, own.count});
      in.push_back({name, others[part], peer, kPartialActivations});
    }
    if (theirs.count > 0) out.push_back({name, elements(x, theirs), peer, kPartialActivations});
  });
  exchange(in, out);
  if (own.count > 0) add_in_order(name, elements(x, own), others);
  in.clear();
  out.clear();
  each_other([&](int part) {
    const Share theirs = piece(count, part);
    const int peer = place_.of_part(part);
    if (theirs.count > 0) in.push_back({name, elements(x, theirs), peer, kWholeActivations});
    if (own.count > 0) out.push_back({name, elements(x, own), peer, kWholeActivations});
  });
  exchange(in, out);
}

// Of two numbers it does not matter which is added to which: those before this rank's are added
// first, then these to its own, then those behind it.
void TensorPeers::add_in_order(const std::string& name, Buf own, const std::vector<Buf>& others) {
  const auto add = [&](Buf to, Buf x) {
    b_.emit("sum." + name, AddTo{element_count(b_.shape(x))}, {x}, {}, {to});
  };
  const int part = place_.part();
  for (int before = 1; before < part; ++before) add(others[0], others[before]);
  if (part > 0) add(own, others[0]);
  for (int behind = part + 1; behind < place_.tensor; ++behind) add(own, others[behind]);
}

void TensorPeers::gather_columns(const std::string& name, Buf own, Buf all) {
  const int64_t rows = b_.shape(all)[0], columns = b_.shape(all)[1];
  std::vector<Buf> parts(place_.tensor, own);
  std::vector<Message> in, out;
  each_other([&](int part) {
    const int peer = place_.of_part(part);
    parts[part] = b_.buffer(name + ".part", {rows, piece(columns, part).count}, Purpose::exchange);
    in.push_back({name, parts[part], peer, kWholeActivations});
    out.push_back(
        {name, elements(own, {0, element_count(b_.shape(own))}), peer, kWholeActivations});
  });
  exchange(in, out);
  for (int part = 0; part < place_.tensor; ++part) {
    const Share to = piece(columns, part);
    b_.emit("gather." + name, CopyColumns{rows, to.count, columns, to.count, 0, to.first},
            {parts[part]}, {all});
  }
}

void TensorPeers::hand_out(const std::string& name, Buf x) {
  if (place_.part() > 0) return exchange({{name, x, place_.of_part(0), kSamples}}, {});
  std::vector<Message> out;
  each_other([&](int part) {
    const Buf whole = elements(x, {0, element_count(b_.shape(x))});
    out.push_back({name, whole, place_.of_part(part), kSamples});
  });
  exchange({}, out);
}

Buf TensorPeers::own_columns(const std::string& name, Buf all) {
  const int64_t rows = b_.shape(all)[0], columns = b_.shape(all)[1];
  const Share own = piece(columns, place_.part());
  const Buf made = b_.buffer(name + ".own", {rows, own.count});
  b_.emit("own." + name, CopyColumns{rows, columns, own.count, own.count, own.first, 0}, {all},
          {made});
  return made;
}

}  // namespace ebb
