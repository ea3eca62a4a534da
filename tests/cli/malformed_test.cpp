// Bad input gets a clear error that names the place, exit code 2, and nothing on standard output.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "command_runner.h"

namespace shardsim::testing {
namespace {

using ::testing::HasSubstr;

struct Row {
  const char* name;
  std::string arguments;
  std::vector<std::string> said;  ///< fragments of the error
};
void PrintTo(const Row& row, std::ostream* out) {
  *out << row.name;
}

class BadArguments : public ::testing::TestWithParam<Row> {};

TEST_P(BadArguments, GetAClearErrorAndExitCode2) {
  const auto outcome = run(split(GetParam().arguments));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  for (const auto& fragment : GetParam().said) EXPECT_THAT(outcome.err, HasSubstr(fragment));
}

const std::string kRun = "simulate --model gpt2 --cluster dgx-h100 --gpus 8 ";

INSTANTIATE_TEST_SUITE_P(
    Table, BadArguments,
    ::testing::Values(
        Row{"UnknownCommand", "simulat --model gpt2", {"simulat", "did you mean \"simulate\"?"}},
        Row{"UnknownOption", kRun + "--stratgy fsdp2", {"--stratgy", "unknown option", "--strategy"}},
        Row{"OptionWithoutValue", kRun + "--strategy", {"--strategy", "needs a value"}},
        Row{"UnknownModel", "simulate --model gpt3 --cluster dgx-h100 --gpus 8", {"gpt3", "did you mean"}},
        Row{"UnknownCluster",
            "simulate --model gpt2 --cluster dgx-h10 --gpus 8",
            {"dgx-h10", "did you mean \"dgx-h100\"?"}},
        Row{"MissingEverything", "simulate", {"/model", "/cluster", "missing"}},
        Row{"ZeroGpus", "simulate --model gpt2 --cluster dgx-h100 --gpus 0", {"--gpus", "integer from 1"}},
        Row{"NegativeGpus",
            "simulate --model gpt2 --cluster dgx-h100 --gpus -8",
            {"--gpus", "integer from 1"}},
        Row{"TooManyGpus", "simulate --model gpt2 --cluster dgx-h100 --gpus 1000000000", {"--gpus"}},
        Row{"DegreesThatDoNotMultiply", kRun + "--dp-shard 3", {"multiply to 3, not to 8", "nearest"}},
        Row{"BatchThatDoesNotDivide",
            kRun + "--micro-batch 3 --global-batch 8",
            {"--global-batch", "nearest legal value: 24"}},
        Row{"ZeroSequence", kRun + "--sequence-length 0", {"--sequence-length", "integer >= 1"}},
        Row{"FractionalSequence", kRun + "--sequence-length 10.5", {"--sequence-length", "integer"}},
        Row{"HugeSequence", kRun + "--sequence-length 99999999999999999999", {"--sequence-length"}},
        Row{"SequenceBeyondCounting",
            kRun + "--sequence-length 1000000000",
            {"/batch", "beyond what can be counted"}},
        Row{"TooManyMicroBatches",
            kRun + "--global-batch 800000000 --trace never_written.json",
            {"--global-batch", "too many to play"}},
        Row{"UnknownStrategy", kRun + "--strategy fsdp3", {"--strategy", "fsdp2"}},
        Row{"UnknownDtype", kRun + "--param int4", {"--param", "bf16"}},
        Row{"UnknownStack", kRun + "--stack jax", {"--stack", "torch_eager"}},
        Row{"BadTorchVersion", kRun + "--torch two", {"--torch", "2.5"}},
        Row{"WrapEveryZero", kRun + "--wrap {\"every\":0}", {"--wrap", "bad value"}},
        Row{"WrapMatchesNothing",
            kRun + "--set data_parallel.wrap=[\"nothing.*\"]",
            {"matches no module", "nearest path"}},
        Row{"ReshardDegreeDoesNotDivide",
            kRun + "--reshard-after-forward 3",
            {"divide", "nearest legal value"}},
        Row{"NegativeClip", kRun + "--clip-grad-norm -1", {"--clip-grad-norm"}},
        Row{"UnknownSetPath",
            kRun + "--set data_paralel.wrap=root",
            {"did you mean \"data_parallel.wrap\"?"}},
        Row{"SetWithoutValue", kRun + "--set data_parallel.wrap", {"--set", "PATH=VALUE"}},
        Row{"UnknownOverride", kRun + "--overrides {\"node.nic\":4}", {"did you mean \"nics\"?"}},
        Row{"OverrideOfWrongType", kRun + "--overrides {\"node.nics\":\"x\"}", {"/node/nics", "integer"}},
        Row{"TensorParallelOfAnEncoder",
            "simulate --model bert-large --cluster dgx-h100 --gpus 8 --strategy fsdp2 --dp-shard 4 --tp 2",
            {"this kind of model", "not simulated"}},
        Row{"OffloadThatTheStrategyHasNot",
            kRun + "--strategy zero1 --offload-parameters cpu",
            {"parameter offload"}},
        Row{"VaryWithoutValues",
            "compare --model gpt2 --cluster dgx-h100 --gpus 8 --vary data_parallel.wrap",
            {"--vary"}},
        Row{"VariedTwice",
            "compare --model gpt2 --cluster dgx-h100 --gpus 8 --vary data_parallel.wrap=block --vary "
            "data_parallel.wrap=root",
            {"--vary", "earlier --vary"}},
        Row{"TwoDocumentsOnOneOutput", kRun + "--json - --trace -", {"two documents"}},
        Row{"KernelShape", "show kernel matmul 1 2 --cluster dgx-h100", {"M N K"}},
        Row{"CollectiveName", "show collective --cluster dgx-h100 --op allgather", {"--op", "all_gather"}},
        Row{"CollectiveSize", "show collective --cluster dgx-h100 --sizes 4XB", {"--sizes", "4XB"}},
        Row{"PerNodeTooLarge",
            "show collective --cluster dgx-h100 --gpus 16 --per-node 9",
            {"--per-node", "nearest legal value: 8"}},
        Row{"MissingFile", "simulate no/such/file.json", {"no/such/file.json", "no such file"}},
        Row{"Directory", "simulate /", {"directory"}},
        Row{"UnwritableOutput", kRun + "--json /no/such/folder/x.json", {"/no/such/folder/x.json"}}),
    [](const auto& test) { return std::string(test.param.name); });

struct FileRow {
  const char* name;
  std::string content;
  std::vector<std::string> said;
};
void PrintTo(const FileRow& row, std::ostream* out) {
  *out << row.name;
}

class BadFiles : public ::testing::TestWithParam<FileRow> {};

TEST_P(BadFiles, GetAClearErrorAndExitCode2) {
  const auto path = std::filesystem::path(::testing::TempDir()) / (std::string(GetParam().name) + ".json");
  std::ofstream(path, std::ios::binary) << GetParam().content;
  const auto outcome = run({"simulate", path.string()});
  std::filesystem::remove(path);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr(path.filename().string()));
  for (const auto& fragment : GetParam().said) EXPECT_THAT(outcome.err, HasSubstr(fragment));
}

std::string with(const std::string& more, const std::string& model = R"("gpt2")") {
  return R"({"schema": "shardsim.run/1", "model": )" + model +
         R"(, "cluster": {"profile": "dgx-h100", "gpus": 8})" + more + "}";
}

std::string neutral(const std::string& more) {
  return with("", R"({"model_type": "transformer", "layers": 2, "hidden": 64, "heads": 4, "vocab": 100)" +
                      more + "}");
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadFiles,
    ::testing::Values(
        FileRow{"Empty", "", {"empty"}}, FileRow{"NotUtf8", "\xff\xfe{}", {"UTF-8"}},
        FileRow{"Truncated", R"({"schema": "shardsim.run/1")", {"line 1", "not valid JSON"}},
        FileRow{"AList", "[]", {"object"}},
        FileRow{"NumberTooLarge", R"({"batch": {"micro_batch": 1e400}})", {"overflow"}},
        FileRow{"DeepNesting", std::string(100'000, '['), {"nested"}},
        FileRow{"DuplicateKey", R"({"id": "a", "id": "b"})", {"duplicate", "id"}},
        FileRow{"WrongSchema", R"({"schema": "shardsim.run/9"})", {"/schema"}},
        FileRow{"UnknownKey", with(R"(, "bach": {})"), {"/bach", "unknown key", "did you mean \"batch\"?"}},
        FileRow{
            "UnknownInnerKey", with(R"(, "layout": {"dp_shards": 8})"), {"/layout/dp_shards", "dp_shard"}},
        FileRow{
            "TextForANumber", with(R"(, "batch": {"micro_batch": "four"})"), {"/batch/micro_batch", "four"}},
        FileRow{"NullForANumber", with(R"(, "batch": {"micro_batch": null})"), {"/batch/micro_batch"}},
        FileRow{"SectionOfWrongType", with(R"(, "layout": 8)"), {"/layout", "an object"}},
        FileRow{"SeveralMistakesAtOnce",
                with(R"(, "batch": {"micro_batch": 0, "sequence_length": -1})"),
                {"/batch/micro_batch", "/batch/sequence_length"}},
        FileRow{"UnknownModelType",
                with("", R"({"model_type": "lama"})"),
                {"/model/model_type", "did you mean \"llama\"?"}},
        FileRow{"ModelWithoutSizes",
                with("", R"({"model_type": "llama"})"),
                {"/model/hidden_size", "/model/vocab_size", "missing"}},
        FileRow{
            "NegativeLayers",
            with("", R"({"model_type": "transformer", "layers": -2, "hidden": 64, "heads": 4, "vocab": 10})"),
            {"/model/layers"}},
        FileRow{
            "HugeVocabulary",
            with("",
                 R"({"model_type": "transformer", "layers": 2, "hidden": 64, "heads": 4, "vocab": 1e12})"),
            {"/model/vocab"}},
        FileRow{"UnknownNeutralKey",
                neutral(R"(, "kv_head": 2)"),
                {"/model/kv_head", "did you mean \"kv_heads\"?"}},
        FileRow{"HeadsThatDoNotShare", neutral(R"(, "kv_heads": 3)"), {"4 query heads", "3 key-value heads"}},
        FileRow{"UnknownActivation", neutral(R"(, "activation": "swish")"), {"/model/activation", "silu"}},
        FileRow{
            "LearnedPositionsWithoutRows", neutral(R"(, "positions": "learned")"), {"/model/max_positions"}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shardsim::testing
