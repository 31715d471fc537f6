#include "model/tensor_peers.h"

namespace ebb {

bool can_cut_tokens(int64_t samples, const RankPlace& place) {
  return place.tensor > 1 && samples >= place.tensor;
}

TensorPeers::TensorPeers(Builder& b, const RankPlace& place, bool cut_tokens)
    : b_(b),
      place_(place),
      cut_tokens_(cut_tokens),
      messages_(b, static_cast<size_t>(place.tensor)) {}

template <typename Body>
void TensorPeers::each_other(Body body) const {
  for (int part = 0; part < place_.tensor; ++part) {
    if (part != place_.part()) body(part);
  }
}

// A view of its own for each message, of a view too.
Buf TensorPeers::elements(Buf of, const Share& some, Shape shape) {
  const Buffer& buffer = b_.program().buffer(of);
  const View view = buffer.is_view() ? buffer.view : View{of};
  const int64_t size = dtype_bytes(buffer.type);
  return b_.view(view.of, shape.empty() ? Shape{some.count} : std::move(shape),
                 view.offset / size + some.first, view.stride / size);
}

// All begin everything before anybody waits.
void TensorPeers::exchange(const std::vector<Message>& in, const std::vector<Message>& out) {
  for (const Message& m : in) messages_.receive_begin(m);
  for (const Message& m : out) messages_.send(m);
  for (const Message& m : in) messages_.receive_end(m);
  messages_.wait_for_sends();
}

TensorPeers::Pieces TensorPeers::pieces(int64_t count, int64_t unit) const {
  Pieces all;
  for (int part = 0; part < place_.tensor; ++part) {
    const Share units = piece(count / unit, part);
    all.push_back({units.first * unit, units.count * unit});
  }
  return all;
}

TensorPeers::Pieces TensorPeers::pieces_of(Buf x, int64_t samples) const {
  const int64_t count = element_count(b_.shape(x));
  return pieces(count, count / samples);
}

void TensorPeers::sum(const std::string& name, Buf x) {
  const Pieces all = pieces(element_count(b_.shape(x)));
  const std::vector<Buf> parts = swap_parts(name, x, all);
  if (all[place_.part()].count > 0) add_in_order(name, parts);
  swap_pieces(name, x, all);
}

std::vector<Buf> TensorPeers::swap_parts(const std::string& name, Buf x, const Pieces& pieces) {
  const Share own = pieces[place_.part()];
  std::vector<Buf> made(place_.tensor);
  std::vector<Message> in, out;
  Buf others;
  if (own.count > 0) {
    others = b_.buffer(name + ".parts", {(place_.tensor - 1) * own.count}, Purpose::exchange);
    made[place_.part()] = elements(x, own);
  }
  each_other([&](int part) {
    const int peer = place_.of_part(part);
    if (own.count > 0) {
      made[part] = elements(others, {std::ssize(in) * own.count, own.count});
      in.push_back({name, made[part], peer, kPartialActivations});
    }
    if (pieces[part].count > 0)
      out.push_back({name, elements(x, pieces[part]), peer, kPartialActivations});
  });
  exchange(in, out);
  return made;
}

void TensorPeers::swap_pieces(const std::string& name, Buf x, const Pieces& pieces) {
  const Share own = pieces[place_.part()];
  std::vector<Message> in, out;
  each_other([&](int part) {
    const int peer = place_.of_part(part);
    if (pieces[part].count > 0)
      in.push_back({name, elements(x, pieces[part]), peer, kWholeActivations});
    if (own.count > 0) out.push_back({name, elements(x, own), peer, kWholeActivations});
  });
  exchange(in, out);
}

// Of two numbers it does not matter which is added to which: those before this rank's are added
// first, then these to its own, then those behind it.
void TensorPeers::add_in_order(const std::string& name, const std::vector<Buf>& parts) {
  const auto add = [&](Buf to, Buf x) {
    b_.emit("sum." + name, AddTo{element_count(b_.shape(x))}, {x}, {}, {to});
  };
  const int part = place_.part();
  for (int before = 1; before < part; ++before) add(parts[0], parts[before]);
  if (part > 0) add(parts[part], parts[0]);
  for (int behind = part + 1; behind < place_.tensor; ++behind) add(parts[part], parts[behind]);
}

bool TensorPeers::shares(int64_t samples) const {
  return cut_tokens_ && can_cut_tokens(samples, place_);
}

Buf TensorPeers::of_own_samples(Buf x, int64_t samples) {
  Shape shape = b_.shape(x);
  shape[0] = shape[0] / samples * own_samples(samples);
  return elements(x, pieces_of(x, samples)[place_.part()], shape);
}

void TensorPeers::sum_of_own_samples(const std::string& name, Buf x, int64_t samples, Buf own) {
  const std::vector<Buf> parts = swap_parts(name, x, pieces_of(x, samples));
  const int64_t count = element_count(b_.shape(own));
  b_.emit("sum." + name, Add{count}, {parts[0], parts[1]}, {own});
  for (int behind = 2; behind < place_.tensor; ++behind) {
    b_.emit("sum." + name, AddTo{count}, {parts[behind]}, {}, {own});
  }
}

void TensorPeers::gather_samples(const std::string& name, Buf x, int64_t samples) {
  swap_pieces(name, x, pieces_of(x, samples));
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

TokenRows::TokenRows(TensorPeers* peers, int64_t samples)
    : peers_(peers),
      all_(samples),
      cut_(peers != nullptr && peers->shares(samples)),
      own_(cut_ ? peers->own_samples(samples) : samples) {}

Buf TokenRows::gathered(Builder& b, const std::string& name, Buf own) const {
  if (!cut_) return own;
  const Buf all = of_all(b, name + ".all", own);
  const int64_t count = element_count(b.shape(own));
  b.emit("own." + name, CopyColumns{1, count, count, count, 0, 0, b.type(own)}, {own},
         {this->own(all)});
  gather(name, all);
  return all;
}

// A buffer with rows of all samples, as large as `own` has them for each of its own.
Buf TokenRows::of_all(Builder& b, const std::string& name, Buf own) const {
  Shape shape = b.shape(own);
  shape[0] = shape[0] / own_ * all_;
  return b.buffer(name, std::move(shape), Purpose::activation, b.type(own));
}

Buf TokenRows::part_of(Builder& b, const std::string& name, Buf sum) const {
  return cut_ ? of_all(b, name + ".part", sum) : sum;
}

void TokenRows::sum(const std::string& name, Buf part, Buf sum) const {
  if (peers_ == nullptr) return;
  cut_ ? peers_->sum_of_own_samples(name, part, all_, sum) : peers_->sum(name, sum);
}

Buf TokenRows::summed(Builder& b, const std::string& name, Buf part) const {
  Shape shape = b.shape(part);
  shape[0] = shape[0] / all_ * own_;
  const Buf made = cut_ ? b.buffer(name + ".own", std::move(shape)) : part;
  sum(name, part, made);
  return made;
}

}  // namespace ebb
