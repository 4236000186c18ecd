# The [Service] settings every deployment shares, with or without NixOS.
{
  cuda ? false,
  drainSeconds ? 60,
}:
{
  Type = "notify";
  NotifyAccess = "main";
  WatchdogSec = 30;
  Restart = "on-failure";
  RestartSec = 2;
  TimeoutStartSec = 600; # a large model is read before READY=1
  TimeoutStopSec = drainSeconds + 15;
  KillSignal = "SIGTERM";
  KillMode = "mixed";

  DynamicUser = true;
  StateDirectory = "imp-server";
  CacheDirectory = "imp-server";
  RuntimeDirectory = "imp-server";
  WorkingDirectory = "%S/imp-server";
  UMask = "0077";
  LimitNOFILE = 65536;
  LimitMEMLOCK = "infinity";

  AmbientCapabilities = "";
  CapabilityBoundingSet = "";
  DevicePolicy = "closed";
  LockPersonality = true;
  # numba and the CUDA driver compile machine code while the server runs
  MemoryDenyWriteExecute = false;
  NoNewPrivileges = true;
  PrivateDevices = !cuda;
  PrivateMounts = true;
  PrivateTmp = true;
  PrivateUsers = true;
  ProcSubset = "all"; # /proc/meminfo
  ProtectClock = true;
  ProtectControlGroups = true;
  ProtectHome = true;
  ProtectHostname = true;
  ProtectKernelLogs = true;
  ProtectKernelModules = true;
  ProtectKernelTunables = true;
  ProtectProc = "invisible";
  ProtectSystem = "strict";
  RemoveIPC = true;
  RestrictAddressFamilies = [
    "AF_INET"
    "AF_INET6"
    "AF_UNIX"
  ];
  RestrictNamespaces = true;
  RestrictRealtime = true;
  RestrictSUIDSGID = true;
  SystemCallArchitectures = "native";
  SystemCallErrorNumber = "EPERM";
  SystemCallFilter = [
    "@system-service"
    "~@privileged"
  ];
}
// (
  if cuda then
    {
      DeviceAllow = [
        "char-nvidiactl"
        "char-nvidia-caps"
        "char-nvidia-frontend"
        "char-nvidia"
        "char-nvidia-uvm"
      ];
    }
  else
    { }
)
