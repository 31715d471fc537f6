// Models whose blocks differ, as `ebb` is told of them.
#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliShapes : public CliTest {
 protected:
  static Args shaped(const std::string& shapes, const Args& more = {}) {
    return Args{"--width",  "32",   "--heads", "4", "--patch",        "4",
                "--shapes", shapes, "--batch", "4", "--sample-every", "0"} +
           more;
  }
};

TEST_F(CliShapes, AreWhatIsPlannedAndTrainedAndResumed) {
  const Args plan =
      Args{"plan", "--image-size", "8", "--channels", "1", "--classes", "3", "--json"};
  const Json uneven = json(plan + shaped("4:128,0:64,2:0,1:16*2"));
  const Json even = json(plan + shaped("4:128*5"));
  EXPECT_LT(uneven["params"], even["params"]);
  EXPECT_LT(uneven["floor_bytes"], even["floor_bytes"]);
  EXPECT_EQ(json(plan + Args{"--width", "32", "--heads", "4", "--patch", "4", "--depth", "5",
                             "--batch", "4", "--sample-every", "0"})["params"],
            even["params"]);
}

TEST_F(CliShapes, WhatIsNoShapeIsRefused) {
  const auto refused = [&](const std::string& shapes, const std::string& noun) {
    SCOPED_TRACE(shapes);
    expect_refused(run(Args{"plan"} + shaped(shapes)), 2, {"--shapes", noun}, Remedy::optional);
  };
  refused("6", "6");
  refused("6:", "--shapes");
  refused("2:32*x", "x");
  refused("2:32*0", "0 blocks");
  refused("2:32*2000", "2000 blocks");
  refused("2:32*2*2", "HEADS:MLP");
  expect_refused(run(Args{"plan"} + shaped("2:32,0:0")), 2, {"block 1", "0 heads"},
                 Remedy::optional);
  expect_refused(run(Args{"plan"} + shaped("-1:32")), 2, {"block 0", "-1 heads"}, Remedy::optional);
  expect_refused(run(Args{"plan", "--depth", "3"} + shaped("2:32*2")), 2,
                 {"--shapes", "2 blocks", "--depth", "3"});
}

}  // namespace
}  // namespace ebb::cli_fixture
