// Gradients in fewer bytes, as people ask for them: --exchange.
#include "cli_ranks_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliRankExchange : public CliRanks {
 protected:
  static Args over(const char* code) { return {"--ranks", "data=2", "--exchange", code}; }
  // Of a model that is worth coding, on a link of this rate.
  Json plan(const Args& more) const {
    return parsed(succeed(Args{"plan", "--model", "DiT-S/8", "--batch", "8", "--memory", "8G",
                               "--threads", "1", "--sample-every", "0", "--json"} +
                          more));
  }
  static std::string exchange_in(const Json& plan) {
    for (const Json& used : plan["techniques"]) {
      if (used["name"] == "exchange") {
        EXPECT_EQ(used["class"], "lossy");
        return used["setting"];
      }
    }
    return "";
  }
};

TEST_F(CliRankExchange, ARunGoesOnAsIfItHadNotBeenStopped) {
  for (const char* code : {"int8", "powersgd:2"}) {
    SCOPED_TRACE(code);
    train_over(2, "whole", 4, over(code));
    train_over(2, "half", 2, over(code));
    train_over(2, "half", 4, {"--resume"});
    EXPECT_TRUE(tensors("half", 4) == tensors("whole", 4));
    fs::remove_all(launch_.folder / "whole");
    fs::remove_all(launch_.folder / "half");
  }
}

TEST_F(CliRankExchange, AWarmUpIsPlannedAnnouncedAndResumed) {
  const Args warm =
      over("topk:0.2") + Args{"--exchange-warmup", "2", "--shard", "off", "--micro-batch", "4"};
  train_over(2, "whole", 4, warm);
  train_over(2, "half", 1, warm);
  const Result rest = run(training("half", settings(4) + Args{"--resume"}), ranks(2));
  ASSERT_EQ(rest.code, 0) << rest.story();
  EXPECT_TRUE(contains(rest.out, "exchange: warms up with topk:0.25, after step 2 topk:0.2"))
      << rest.out;
  EXPECT_TRUE(contains(rest.out, "step 2: exchange: topk:0.2 from now on")) << rest.out;
  EXPECT_TRUE(tensors("half", 4) == tensors("whole", 4));
  Args planning = training("unused", settings(4) + warm);
  planning[0] = "plan";
  const Json planned = parsed(succeed(planning + Args{"--json"}));
  ASSERT_EQ(planned["phases"].size(), 2u);
  EXPECT_EQ(planned["phases"][1]["exchange"], "topk:0.2");
  EXPECT_EQ(planned["phases"][1]["after_step"], 2);
  int64_t most = 0;
  for (const Json& rank : planned["ranks"]) most = std::max<int64_t>(most, rank["process_bytes"]);
  for (const Json& phase : planned["phases"]) EXPECT_LE(phase["process_bytes"], most);
  const Result people = succeed(planning);
  EXPECT_TRUE(contains(people.out, "topk:0.25: the tables are of this one")) << people.out;
}

TEST_F(CliRankExchange, OneBitGoesThroughItsWarmUpOnAnyLayout) {
  const Args signs = {"--exchange", "onebit", "--exchange-warmup", "2", "--shard", "off"};
  train_over(2, "whole", 4, Args{"--ranks", "data=2"} + signs);
  // Stopped where signs begin, cut into stages and with rows of the label table.
  train_over(2, "half", 2, Args{"--ranks", "data=2", "--label-rows", "on"} + signs);
  const Result rest = run(training("half", settings(4) + Args{"--resume", "--ranks",
                                                              "data=2,pipe=2", "--shard", "off"}),
                          ranks(4));
  ASSERT_EQ(rest.code, 0) << rest.story();
  EXPECT_TRUE(contains(rest.out, "exchange: warms up with fp32 before onebit, after step 2 onebit"))
      << rest.out;
  EXPECT_TRUE(tensors("half", 4) == tensors("whole", 4));
  const Result alone = run(training("half", settings(6) + Args{"--resume"}));
  EXPECT_EQ(alone.code, 5) << alone.story();
  EXPECT_TRUE(contains(alone.err, "have not sent")) << alone.story();
  const Result dropped =
      run(training("half", settings(6) + Args{"--resume", "--exchange", "fp32"}));
  EXPECT_EQ(dropped.code, 0) << dropped.story();
}

TEST_F(CliRankExchange, WhatWasNotSentIsDroppedOnlyWhereThatIsSaid) {
  train_over(2, "run", 2, over("topk:0.05"));
  const Args on = {"train", "--out", "run", "--resume", "--steps", "4"};
  const Result refused = run(on + Args{"--ranks", "auto"});
  EXPECT_EQ(refused.code, 5) << refused.story();
  EXPECT_TRUE(contains(refused.err, "have not sent")) << refused.story();
  EXPECT_TRUE(contains(refused.err, "--exchange fp32")) << refused.story();
  const Result dropped = run(on + Args{"--ranks", "auto", "--exchange", "fp32"});
  EXPECT_EQ(dropped.code, 0) << dropped.story();
  EXPECT_TRUE(contains(dropped.err, "is dropped")) << dropped.story();
  train_over(3, "three", 2, {"--ranks", "data=3", "--exchange", "topk:0.05"});
  train_over(2, "three", 4, {"--ranks", "data=2", "--resume"});
}

TEST_F(CliRankExchange, WhatWasNotSentLiesOnADiskWhereABudgetAsksForIt) {
  fs::create_directory(launch_.folder / "disk");
  const Args wide = over("powersgd:2") + Args{"--width", "192", "--heads", "4", "--shard", "off"};
  train_over(2, "here", 2, wide);
  Args away = wide + Args{"--offload", (launch_.folder / "disk").string()};
  const auto planned = [&](const Args& more) {
    Args plan = training("away", settings(2) + away + more) + Args{"--json"};
    plan[0] = "plan";
    return Json::parse(succeed(plan).out);
  };
  const Json free = planned({});
  EXPECT_EQ(free["techniques"].dump().find("offload"), std::string::npos);
  away = away + Args{"--memory", std::to_string(free["floor_bytes"].get<int64_t>())};
  EXPECT_NE(planned({})["techniques"].dump().find("what codes have not sent"), std::string::npos);
  train_over(2, "away", 2, away);
  EXPECT_TRUE(tensors("here", 2) == tensors("away", 2));
  EXPECT_TRUE(fs::is_empty(launch_.folder / "disk"));
}

TEST_F(CliRankExchange, IsPrunedAlong) {
  train_over(2, "run", 2, over("powersgd:2") + Args{"--width", "32", "--heads", "4"});
  succeed({"prune", "--from", "run", "--heads", "0.5", "--out", "p.safetensors"});
  const SafetensorsReader file(launch_.folder / "p.safetensors", Exit::disk);
  const TensorEntry* weight = file.find("blocks.0.attn.qkv.weight");
  const TensorEntry* rest = file.find("rest1.blocks.0.attn.qkv.weight");
  ASSERT_TRUE(weight != nullptr && rest != nullptr);
  EXPECT_EQ(rest->shape, weight->shape);
  const Result r =
      run({"train", "--from", "p.safetensors", "--out", "small", "--steps", "4"}, ranks(2));
  EXPECT_EQ(r.code, 0) << r.story();
}

TEST_F(CliRankExchange, ThePlannerCodesWhatPaysAndOnlyWhereItMay) {
  const Args slow = {"--ranks", "data=2", "--link", "20M,100us"},
             fast = {"--ranks", "data=2", "--link", "100G,2us"};
  const Json plain = plan(slow), coded = plan(slow + Args{"--allow", "exchange8,powersgd"});
  EXPECT_EQ(exchange_in(plain), "");
  EXPECT_EQ(exchange_in(coded), "powersgd:4");
  EXPECT_LT(coded["predicted_step_seconds"].get<double>(),
            0.5 * plain["predicted_step_seconds"].get<double>());
  EXPECT_LT(coded["ranks"][0]["sent_bytes"].get<int64_t>(),
            plain["ranks"][0]["sent_bytes"].get<int64_t>() / 20);
  EXPECT_EQ(exchange_in(plan(fast + Args{"--allow", "exchange8,powersgd"})), "");
}

TEST_F(CliRankExchange, APlanSaysFromWhichLinkOnACodeGainsNothing) {
  const Args two = {"--ranks",     "data=2", "--micro-batch", "4",
                    "--recompute", "none",   "--release",     "off"};
  const auto codes = [&](const char* link) { return plan(two + Args{"--link", link})["codes"]; };
  const Json all = codes("1G,50us");
  ASSERT_EQ(all.size(), 5u);
  for (const Json& code : all) {
    const Json& below = code["pays_below_bits_per_second"];
    ASSERT_TRUE(below.is_number()) << code;
    ASSERT_GT(below, 0) << code;
    // A link on either side of it.
    for (const double part : {0.8, 1.25}) {
      const std::string link = fmt::format("{:.4g}M,50us", below.get<double>() * part / 1e6);
      const Args coded = {"--exchange", code["code"], "--link", link};
      const double plain =
          plan(two + Args{"--exchange", "fp32", "--link", link})["predicted_step_seconds"];
      const double taken = plan(two + Args{"--shard", "off"} + coded)["predicted_step_seconds"];
      EXPECT_EQ(taken < plain, part < 1) << code << " at " << link;
    }
  }
  const Result people =
      succeed({"plan", "--model", "DiT-S/8", "--batch", "4", "--ranks", "data=2"});
  EXPECT_TRUE(contains(people.out, "(--exchange) pay on links: bf16 below ")) << people.out;
}

TEST_F(CliRankExchange, GroupsOfPipelinesArePlannedWithACode) {
  const Result r = succeed({"plan",
                            "--width",
                            "16",
                            "--depth",
                            "4",
                            "--heads",
                            "2",
                            "--patch",
                            "4",
                            "--batch",
                            "8",
                            "--micro-batch",
                            "4",
                            "--order",
                            "batch",
                            "--recompute",
                            "none",
                            "--shard",
                            "off",
                            "--memory",
                            "300M",
                            "--ranks",
                            "data=2,pipe=2",
                            "--exchange",
                            "int8"});
  EXPECT_TRUE(contains(r.out, "data=2,pipe=2")) << r.out;
}

TEST_F(CliRankExchange, IsRefusedByNameWhereItCannotBe) {
  const auto refuse = [&](const Args& flags, const char* one, const char* other) {
    const Result r = run(Args{"plan", "--model", "DiT-S/8", "--batch", "8"} + flags);
    EXPECT_EQ(r.code, 2) << r.story();
    EXPECT_TRUE(contains(r.err, one) && contains(r.err, other)) << r.story();
  };
  refuse({"--exchange", "bf16"}, "--exchange bf16", "--ranks");
  refuse({"--exchange", "int8", "--ranks", "pipe=2"}, "--exchange int8", "--ranks");
  refuse({"--exchange", "int8", "--ranks", "data=2", "--sum", "tree:2"}, "--exchange int8",
         "--sum tree:2");
  refuse({"--exchange", "int8", "--ranks", "data=2,tensor=2"}, "--exchange int8", "tensor=2");
  refuse({"--galore", "on", "--ranks", "tensor=2"}, "--galore", "tensor=2");
  refuse({"--exchange", "bf16+feedback", "--ranks", "data=2", "--release", "on"},
         "--exchange bf16+feedback", "--release on");
  const Args two = {"--ranks", "data=2", "--exchange-warmup", "9"};
  refuse(two, "--exchange-warmup 9", "--exchange");
  refuse(two + Args{"--exchange", "int8"}, "--exchange-warmup 9", "--exchange int8");
  refuse(two + Args{"--exchange", "topk:0.25"}, "--exchange-warmup 9", "--exchange topk:0.25");
  const Args signs = {"--ranks", "data=2", "--exchange", "onebit"};
  refuse(signs + Args{"--exchange-warmup", "0"}, "--exchange-warmup 0", "--exchange onebit");
  refuse(signs + Args{"--optimizer", "lion"}, "--exchange onebit", "--optimizer lion");
  refuse(signs + Args{"--galore", "on"}, "--exchange onebit", "--galore");
  refuse(signs + Args{"--moments", "8bit"}, "--exchange onebit", "--moments 8bit");
  refuse(signs + Args{"--release", "on"}, "--exchange onebit", "--release on");
  refuse(signs + Args{"--sum", "tree:2"}, "--exchange onebit", "--sum tree:2");
  refuse({"--exchange", "onebit", "--ranks", "pipe=2"}, "--exchange onebit", "--ranks");
  refuse({"--exchange", "onebit", "--ranks", "data=2,tensor=2"}, "--exchange onebit", "tensor=2");
  refuse(two + Args{"--exchange", "topk:0.1", "--save-every", "0"}, "--exchange-warmup",
         "--save-every 0");
  for (const char* word : {"topk:0", "topk:2", "powersgd:0", "powersgd:65", "bf15", "topk"}) {
    refuse({"--exchange", word, "--ranks", "data=2"}, word, "powersgd:R");
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
