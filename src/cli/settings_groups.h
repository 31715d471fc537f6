// The settings in groups, as help shows them; settings_table.cpp makes a table for each verb of
// them.
#pragma once

#include <vector>

#include "cli/setting_kinds.h"

namespace ebb {

using SettingList = std::vector<Setting>;

SettingList group(const char* title, SettingList list);

Setting class_count();
SettingList model_settings();
SettingList grad_model_settings();
Setting thread_count();
SettingList budget_settings();
Setting offload_directory();
Setting debug_memory();
SettingList technique_settings();
Setting exchange_warmup();
Setting batch_size(const char* help);
SettingList rank_settings(const std::string& link);  // where nobody says which it is
SettingList equal_rank_settings(const char* share);  // of ranks that all do alike
SettingList sampler_settings(const char* steps_name);
SettingList train_settings();
SettingList pruning_settings();
SettingList record_settings();
Setting machine_file();
Setting json();
SettingList prune_settings();

}  // namespace ebb
