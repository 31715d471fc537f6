// What a checkpoint must have in common with the run that goes on from it.
#pragma once

#include <string>
#include <vector>

#include "state/checkpoint.h"
#include "train/train_options.h"

namespace ebb {

// Each value that is not the one asked for: "--width 16, not 32". Of a model: what flags can say.
std::vector<std::string> model_differences(const DitConfig& saved, const DitConfig& asked);
std::vector<std::string> run_differences(const CheckpointInfo& saved, const TrainOptions& asked);

// Fails with Exit::disk where there are any.
void check_run(const SafetensorsReader& file, const CheckpointInfo& saved,
               const TrainOptions& asked);

// Fails with Exit::disk where the moments of matrices are of another shape than the step's.
void check_galore(const SafetensorsReader& file, const CheckpointInfo& saved, const StepSpec& step);

// Whose state it is. Exit::disk where there is no such optimizer.
Optimizer saved_optimizer(const SafetensorsReader& file, const CheckpointInfo& saved);

// Names of more than kMostRecordBytes are left out: nothing of their size is held twice.
DataRecord record_of(const DataInfo& info);

// What has changed in the data since then, a phrase each; nothing where one of them is not known.
std::vector<std::string> data_differences(const DataRecord& then, const DataRecord& now);

// Exit::data, with the differences in one line.
[[noreturn]] void refuse_data(const SafetensorsReader& file, const std::string& differences);

// What is to be said where they are accepted; refused where they are not.
std::vector<std::string> accepted_data(const SafetensorsReader& file, const CheckpointInfo& saved,
                                       const DataRecord& now, const TrainOptions& asked);

// Fails with Exit::disk where the file was found under the name of another step.
void check_name(const SafetensorsReader& file, const CheckpointInfo& saved, int64_t named);

}  // namespace ebb
