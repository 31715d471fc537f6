#include "plan/link.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/traffic.h"

namespace ebb {
namespace {

TEST(Link, RatesAreBitsAndLatenciesHaveUnits) {
  const struct {
    const char* text;
    double bytes, seconds;
  } links[] = {{"100G,2us", 12.5e9, 2e-6},    {"1G,0.1ms", 125e6, 1e-4}, {"100M,1s", 12.5e6, 1},
               {"2.5T,300ns", 312.5e9, 3e-7}, {"64K,0.5ms", 8e3, 5e-4},  {"9600,20ms", 1200, 0.02},
               {"1e9,1.5e1us", 125e6, 1.5e-5}};
  for (const auto& [text, bytes, seconds] : links) {
    const Link link = parse_link(text, "--link");
    EXPECT_DOUBLE_EQ(link.bytes_per_second, bytes) << text;
    EXPECT_DOUBLE_EQ(link.latency_seconds, seconds) << text;
  }
}

TEST(Link, WhatIsNoLinkIsRefusedByNameWithAnExample) {
  for (const char* text :
       {"",          ",",          "100G",       "2us",       "100G,",        ",2us",
        "100G,2us,", "100G,2us,1", "100G 2us",   "0,2us",     "0G,2us",       "-1G,2us",
        "nan,2us",   "nanG,2us",   "inf,2us",    "infG,2us",  "1e400G,2us",   "1e300T,2us",
        "1e-30,2us", "fast,2us",   "G,2us",      "100X,2us",  "100GB,2us",    "100GiB,2us",
        "100 G,2us", " 100G,2us",  "+100G,2us",  "0x10G,2us", "100G,0us",     "100G,0",
        "100G,2",    "100G,-2us",  "100G,nanus", "100G,infs", "100G,inf",     "100G,us",
        "100G,2 us", "100G,2us ",  "100G,2US",   "100G,2min", "100G,1e-400s", "100G,1e400s",
        "100G,1e7s", "100G,2us\n", "100g,2us",   "\xff,2us"}) {
    try {
      parse_link(text, "--link");
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::usage) << text;
      EXPECT_EQ(std::string(error.what()).rfind("--link: '", 0), 0u) << error.what();
      EXPECT_NE(error.hint().find("--link 100G,2us"), std::string::npos) << error.hint();
    }
  }
}

TEST(Link, TextAndLinkAreEachOthersInverse) {
  for (const char* text :
       {"100G,2us", "1G,100us", "100M,1s", "2.5T,300ns", "9.6K,20ms", "40G,1ms"}) {
    EXPECT_EQ(link_text(parse_link(text, "--link")), text);
  }
  EXPECT_EQ(link_text(parse_link("1000M,1000us", "--link")), "1G,1ms");
}

TEST(Link, WordsHaveTwoDigits) {
  EXPECT_EQ(link_words({2.13e9, 59.7e-6}), "2.1 GB/s, 60 us");
  EXPECT_EQ(link_words({125e6, 1.24e-3}), "125 MB/s, 1.2 ms");
  EXPECT_EQ(link_text({2.1349e9, 59.71e-6}, 3), "17.1G,59.7us");
}

TEST(Link, PiecesAreThoseOfTheTransport) {
  const Link link;
  EXPECT_EQ(link.piece_bytes, kPieceBytes);
  EXPECT_EQ(link.pieces_at_once, kPiecesAtOnce);
}

// A link on which a piece takes 1 s, and its answer as long as two windows of them, is half idle.
TEST(Link, AFarLinkIsNotFilledByThePiecesUnderWay) {
  constexpr int64_t kPiece = Link{}.piece_bytes;
  constexpr int kWindow = Link{}.pieces_at_once;
  const Link near{kPiece, kWindow - 1}, far{kPiece, 2 * kWindow - 1};
  EXPECT_DOUBLE_EQ(near.seconds(640 * kPiece), kWindow - 1 + 640);
  EXPECT_DOUBLE_EQ(far.seconds(640 * kPiece), 2 * kWindow - 1 + 2 * 640);
  EXPECT_DOUBLE_EQ(far.seconds(kWindow * kPiece), 2 * kWindow - 1 + kWindow);
}

}  // namespace
}  // namespace ebb
