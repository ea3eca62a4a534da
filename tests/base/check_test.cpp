#include "base/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardsim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Check, PassesInSilence) {
  EXPECT_NO_THROW(SHARDSIM_CHECK(1 + 1 == 2, "arithmetic"));
}

TEST(Check, FailurePrintsTheConditionAndItsValues) {
  const int rank = 9;
  EXPECT_THAT([&] { SHARDSIM_CHECK(rank < 8, "rank {} of {}", rank, 8); },
              ThrowsMessage<InternalError>(
                  AllOf(HasSubstr("rank < 8"), HasSubstr("rank 9 of 8"), HasSubstr("check_test.cpp"))));
}

TEST(Unreachable, NamesThePlace) {
  EXPECT_THAT([] { unreachable("some_function"); }, ThrowsMessage<InternalError>(HasSubstr("some_function")));
}

}  // namespace
}  // namespace shardsim
