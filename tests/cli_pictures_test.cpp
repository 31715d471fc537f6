// Folders of large pictures of every kind, trained on within a budget that they weigh on.
#include <gif_lib.h>
#include <webp/encode.h>

#include "cli_fixture.h"
#include "image_fixture.h"

namespace ebb::cli_fixture {
namespace {

constexpr int kWidth = 1200, kHeight = 900;

// By its name among those that bound memory: what a sanitizer takes is not ours to bound.
class CliMemoryPictures : public CliTest {
 protected:
  // Patches of noise, each with few values of its own: what takes decoders most memory.
  static image_fixture::Bytes patches(int channels) {
    image_fixture::Bytes pixels;
    uint32_t state = 1;
    for (int y = 0; y < kHeight; ++y) {
      for (int x = 0; x < kWidth; ++x) {
        const uint32_t patch = static_cast<uint32_t>(y / 20 * 61 + x / 20);
        for (int c = 0; c < channels; ++c) {
          state = state * 1664525 + 1013904223;
          pixels.push_back(static_cast<uint8_t>(patch * 37 + (state >> 24) % (2 + patch % 60)));
        }
      }
    }
    return pixels;
  }
  void write_webp(const std::string& name, bool lossless) const {
    const auto rgba = patches(4);
    uint8_t* data = nullptr;
    const size_t size =
        lossless ? WebPEncodeLosslessRGBA(rgba.data(), kWidth, kHeight, kWidth * 4, &data)
                 : WebPEncodeRGBA(rgba.data(), kWidth, kHeight, kWidth * 4, 80, &data);
    spill(at(name), {reinterpret_cast<const char*>(data), size});
    WebPFree(data);
  }
  void write_gif(const std::string& name) const {
    fs::create_directories(at(name).parent_path());
    int error = 0;
    GifFileType* file = EGifOpenFileName(at(name).c_str(), false, &error);
    ColorMapObject* map = GifMakeMapObject(256, nullptr);
    EGifPutScreenDesc(file, kWidth, kHeight, 8, 0, map);
    EGifPutImageDesc(file, 0, 0, kWidth, kHeight, true, nullptr);
    auto lines = patches(1);
    for (int y = 0; y < kHeight; ++y) EGifPutLine(file, lines.data() + y * kWidth, kWidth);
    EGifCloseFile(file, &error);
    GifFreeMapObject(map);
  }
  void write_bmp(const std::string& name) const {
    std::string bytes("BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0", 18);
    for (const uint32_t value :
         {uint32_t{kWidth}, uint32_t{kHeight}, 1u | 24u << 16, 0u, 0u, 0u, 0u, 0u, 0u}) {
      bytes += raw(std::vector<uint32_t>{value});
    }
    spill(at(name), bytes + raw(patches(3)));
  }
};

TEST_F(CliMemoryPictures, EveryKindIsTrainedOnWithinItsPlan) {
  write_webp("exact/0.webp", true);
  write_webp("lossy/0.webp", false);
  write_gif("gif/0.gif");
  write_bmp("bmp/0.bmp");
  fs::create_directories(at("jpeg"));
  image_fixture::make_jpeg(at("jpeg/0.jpg"), kWidth, kHeight, patches(3), {.progressive = true});
  for (const std::string kind : {"exact", "lossy", "gif", "bmp", "jpeg"}) {
    SCOPED_TRACE(kind);
    const std::string first = files_below(at(kind)).front();
    for (int i = 1; i < 4; ++i) {
      fs::copy_file(at(kind) / first, at(kind) / (std::to_string(i) + first.substr(1)));
    }
    const Args settings = {"--image-size", "32", "--steps",  "3",
                           "--save-every", "0",  "--memory", "200M"};
    Args planning = training("unused", settings, kind);
    planning[0] = "plan";
    const int64_t planned = json(planning + Args{"--json"})["process_bytes"];
    const Result result = succeed(training("run_" + kind, settings, kind));
    EXPECT_TRUE(contains(result.out, "4 samples")) << result.story();
    ASSERT_EQ(log("run_" + kind).size(), 3u);
    EXPECT_LE(log("run_" + kind).back()["process_peak_bytes"], planned) << result.story();
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
