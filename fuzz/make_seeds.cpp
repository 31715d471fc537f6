// Writes fuzz/seeds: small files of every kind that the readers take, as others and as Ebb write
// them.
//   cmake --build build --target make_fuzz_seeds && build/tests/make_fuzz_seeds fuzz/seeds
#include <zlib.h>

#include "formats/atomic_file.h"
#include "formats/data_json.h"
#include "formats/model_json.h"
#include "formats/pruned_json.h"
#include "formats/safetensors.h"
#include "image_kinds_fixture.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

fs::path root;

void put(const std::string& name, std::string_view bytes) {
  const fs::path path = root / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

DitConfig small_model() {
  DitConfig c;
  c.width = 8;
  c.patch = 2;
  c.image_size = 4;
  c.channels = 1;
  c.classes = 3;
  set_blocks(c, 2, 2);
  return c;
}

void json() {
  put("json/model", model_to_json(small_model()));
  put("json/uneven", R"({"width":8,"depth":2,"heads":2,"patch":2,"image_size":4,"channels":1,
"classes":3,"learn_sigma":true,"objective":"flow","qk_norm":"rms","blocks":[[1,20],[2,7]]})");
  put("json/values", R"({"i":-12,"r":1.5e-3,"s":"a\u00e9\ud83d\ude00\n","b":true,"a":[0,1e9,-0.0],
"o":{"x":null,"y":[[],{}]}})");
  put("json/list", R"([1,2.5,"x",null,false,{"k":[[[[0]]]]}])");
}

void safetensors() {
  const float floats[6] = {1, -2, 0.5f, 3, 4, 5};
  const int64_t whole[2] = {7, -7};
  const uint16_t halves[4] = {0x3c00, 0xbc00, 0x7c00, 0x3555};
  const fs::path to = root / "safetensors";
  fs::create_directories(to);
  write_safetensors(to / "plain", {{"a", TensorType::F32, {2, 3}, floats}}, {}, false);
  write_safetensors(to / "hashed",
                    {{"a", TensorType::F32, {6}, floats},
                     {"b", TensorType::I64, {2, 1}, whole},
                     {"c", TensorType::F16, {4}, halves},
                     {"d", TensorType::BF16, {2, 2}, halves},
                     {"empty", TensorType::U8, {0, 5}, nullptr}},
                    {{"who", "nobody"}}, true);
}

void checkpoint() {
  const DitConfig config = small_model();
  const fs::path to = root / "checkpoint";
  fs::create_directories(to);
  const float one[1] = {1};
  write_safetensors(
      to / "own", {{"x", TensorType::F32, {1}, one}},
      {{"ebb.format", "1"},
       {kModelKey, model_to_json(config)},
       {"ebb.step", "12"},
       {"ebb.samples", "48"},
       {"ebb.seed", "7"},
       {"ebb.pixels", "true"},
       {"ebb.storage", "fp32"},
       {"ebb.updates", "12"},
       {"ebb.loss_scale", "1024"},
       {"ebb.clean_steps", "3"},
       {"ebb.average_start", "0.5"},
       {kDataKey, data_to_json({"images", 9, "0f", {"a", "b", "c"}, {2, 3, 4}})},
       {kPrunedKey, pruned_to_json({{0, {{0, 1}}, {{0, 30}, {40, 40}}}, {3, {{1, 2}}, {{0, 31}}}})},
       {"ebb.settings", "lr = 0.1\n"}},
      false);
  DitConfig flow = config;
  flow.objective = Objective::flow;
  flow.learn_sigma = false;
  flow.qk_norm = QkNormKind::rms;
  flow.classes = 0;
  flow.blocks = {{1, 20}};
  write_safetensors(to / "flow", {{"x", TensorType::F32, {1}, one}},
                    {{"ebb.format", "1"},
                     {kModelKey, model_to_json(flow)},
                     {"ebb.step", "0"},
                     {"ebb.samples", "0"},
                     {"ebb.seed", "0"},
                     {"ebb.pixels", "false"},
                     {"ebb.settings", "ema = 0.99\nema-ramp = true\n"}},
                    false);
  // Under the reference's names; of the tensors only the shapes are looked at.
  const std::vector<std::byte> zeros(12);
  write_safetensors(to / "reference",
                    {{"x_embedder.proj.weight", TensorType::U8, {4, 1, 1, 1}, zeros.data()},
                     {"y_embedder.embedding_table.weight", TensorType::U8, {3, 1}, zeros.data()},
                     {"final_layer.linear.weight", TensorType::U8, {2, 1}, zeros.data()},
                     {"pos_embed", TensorType::U8, {1, 4, 1}, zeros.data()},
                     {"blocks.0.attn.qkv.weight", TensorType::U8, {12, 1}, zeros.data()},
                     {"blocks.0.mlp.fc1.weight", TensorType::U8, {3, 1}, zeros.data()}},
                    {}, false);
}

void npy() {
  const auto file = [](const std::string& type, const std::string& shape, size_t bytes,
                       char version) {
    std::string header =
        "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
    std::string start = "\x93NUMPY";
    start += version;
    start += '\0';
    start += static_cast<char>(header.size());
    start += std::string(version == 1 ? 1 : 3, '\0');
    return start + header + std::string(bytes, '?');
  };
  put("npy/f4", file("<f4", "(1, 2, 3)", 24, 1));
  put("npy/f8", file("<f8", "(2,)", 16, 2));
  put("npy/f2", file("<f2", "(3,)", 6, 1));
  put("npy/i8", file("<i8", "(1,)", 8, 3));
  put("npy/u1", file("|u1", "()", 1, 1));
  put("npy/header", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 32, 32), }");
}

void idx() {
  std::string images = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2};
  images += "abcdefghijkl";
  std::string labels = {0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4};
  for (const auto& [name, bytes] : {std::pair{"images", images}, std::pair{"labels", labels}}) {
    put(std::string("idx/") + name, bytes);
    const fs::path packed = root / "idx" / (std::string(name) + "_gz");
    gzFile file = gzopen(packed.c_str(), "wb9");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
}

void images() {
  using namespace image_fixture;
  for (const char* folder : {"png", "jpeg", "webp", "webp_exact", "gif", "bmp", "exif"}) {
    fs::create_directories(root / folder);
  }
  make_png(root / "png/rgb", 5, 4, gradient(5, 4, 3));
  make_png(root / "png/gray16", 3, 3, gradient(3, 3, 2),
           {.colour = PNG_COLOR_TYPE_GRAY, .depth = 16});
  make_png(root / "png/alpha", 9, 9, gradient(9, 9, 4),
           {.colour = PNG_COLOR_TYPE_RGB_ALPHA, .interlaced = true});
  make_png(root / "png/palette", 7, 3, gradient(2, 3, 1),
           {.colour = PNG_COLOR_TYPE_PALETTE, .depth = 2, .transparent_first = true});
  make_jpeg(root / "jpeg/rgb", 17, 9, gradient(17, 9, 3), {.quality = 30});
  make_jpeg(root / "jpeg/gray", 8, 8, gradient(8, 8, 1), {.space = JCS_GRAYSCALE, .quality = 30});
  make_jpeg(root / "jpeg/cmyk", 8, 8, gradient(8, 8, 4), {.space = JCS_CMYK, .quality = 30});
  make_jpeg(root / "jpeg/progressive", 17, 9, gradient(17, 9, 3),
            {.progressive = true, .quality = 30});

  make_webp(root / "webp/lossy", 17, 9, opaque(gradient(17, 9, 3)), false);
  make_webp(root / "webp/small", 6, 2, opaque(gradient(6, 2, 3)), false);
  spill(root / "webp/animation",
        webp_animation(slurp(root / "webp/small"), slurp(root / "webp/small")));
  make_webp(root / "webp_exact/lossless", 17, 9, opaque(gradient(17, 9, 3)), true);
  make_webp(root / "webp_exact/alpha", 9, 9, gradient(9, 9, 4), false);
  make_webp(root / "webp_exact/small", 2, 1, {10, 20, 30, 255, 40, 50, 60, 0}, true);
  spill(root / "webp_exact/animation",
        webp_animation(slurp(root / "webp_exact/small"), slurp(root / "webp_exact/small")));
  spill(root / "webp_exact/upright", webp_with_exif(gradient(3, 2, 3), 3, 2, tiff(5, true)));

  make_gif(root / "gif/plain", 9, {.width = 9, .height = 9}, gif_numbers(81));
  make_gif(root / "gif/interlaced", 9, {.width = 9, .height = 9, .interlaced = true},
           gif_numbers(81));
  make_gif(root / "gif/within", 9, {.left = 2, .top = 1, .transparent = 7}, gif_numbers(16));

  spill(root / "bmp/rgb", bmp_bytes(4, 3, 24, 0, {}, gradient(4, 3, 3)));
  spill(root / "bmp/down", bmp_bytes(4, -3, 32, 0, {}, gradient(4, 3, 4)));
  spill(root / "bmp/bits",
        bmp_bytes(9, 2, 1, 0, {0, 0, 0, 0, 255, 255, 255, 0}, {8, 1, 0, 0, 9, 0, 0, 0}));
  spill(root / "bmp/nibbles", bmp_bytes(3, 2, 4, 0, Bytes(64, 9), gradient(4, 2, 1)));
  spill(root / "bmp/bytes", bmp_bytes(4, 2, 8, 0, gradient(16, 16, 4), gradient(4, 2, 1)));
  Bytes masks;
  for (const uint32_t mask : {0xff0000u, 0xff00u, 0xffu, 0xff000000u}) {
    append_number(masks, mask, 4);
  }
  spill(root / "bmp/masks", bmp_bytes(2, 2, 32, 3, masks, gradient(2, 2, 4), 56));
  spill(root / "bmp/old", {'B', 'M', 42, 0, 0, 0, 0, 0, 0, 0, 34, 0, 0, 0, 12, 0, 0, 0, 1, 0, 2,
                           0,   1,   0,  1, 0, 9, 9, 9, 5, 5, 5,  0, 0, 1, 0,  0, 0, 0, 0, 0, 0});

  spill(root / "exif/little", tiff(6, true));
  spill(root / "exif/big", tiff(8, false));
  spill(root / "exif/jpeg", with_exif_jpeg(slurp(root / "jpeg/gray"), tiff(3, false)));
  spill(root / "exif/png", with_exif_png(slurp(root / "png/rgb"), tiff(7, true)));
  spill(root / "exif/webp", webp_with_exif(gradient(3, 2, 3), 3, 2, tiff(5, true)));
  spill(
      root / "exif/webp_prefixed",
      webp_with_exif(gradient(3, 2, 3), 3, 2, joined({'E', 'x', 'i', 'f', 0, 0}, tiff(5, false))));
}

void toml() {
  put("toml/settings",
      "# a run\nmodel = \"DiT-S/4\"\nbatch = 8\nlr = 1e-4\nclip = 0.5\nema-ramp = true\n"
      "memory = \"2G\"\ndata = 'somewhere/\xc3\xa9'\n");
  put("toml/sizes", "width = 16\ndepth = 1\nheads = 2\npatch = 4\nimage-size = 8\nseed = 0x10\n");
  put("toml/strings", "out = \"\"\"\na\\tb\\u00e9\"\"\"\nallow = '''bf16'''\noffload = \"\"\n");
  put("toml/odd", "a = [1, {b = 2024-01-01T00:00:00Z}]\n[t]\n\"q\" = nan\nx.y = +1_000\n[[l]]\n");
  put("toml/letters", "\xc7\xb4 = 1\n");
}

}  // namespace
}  // namespace ebb

int main(int, char** argv) {
  ebb::root = argv[1];
  ebb::json();
  ebb::safetensors();
  ebb::checkpoint();
  ebb::npy();
  ebb::idx();
  ebb::images();
  ebb::toml();
}
