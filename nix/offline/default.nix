# A package set with the names imp's flake asks nixpkgs for, with the same meaning for what it asks.
#
# Everything is built in Nix's sandbox from the files mkseed.py laid beside this one: the host's CPython made to run
# from the store, wheels whose hashes Nix checks again, and a static busybox and patchelf.
{ system }:
let
  lib = import ./lib.nix;
  index = builtins.fromJSON (builtins.readFile ./seed.json);
  py = index.python;
  site = "lib/${py}/site-packages";
  seed = builtins.path {
    path = ./bin;
    name = "seed-bin";
  };
  wheelFile =
    name: sha256:
    builtins.path {
      path = ./wheels + "/${name}";
      inherit name sha256;
      recursive = false;
    };
in
lib.fix (pkgs: {
  inherit lib;
  callPackage = lib.callPackageWith pkgs;
  stdenv.hostPlatform = { inherit system; };
  addDriverRunpath.driverLink = "/run/opengl-driver";

  # busybox acts by the name it is called with, so even the copy that runs first must be called busybox
  busybox = derivation {
    name = "busybox";
    inherit system;
    builder = "${seed}/busybox";
    args = [
      "sh"
      "-c"
      "b=${seed}/busybox; $b mkdir -p $out/bin; $b cp $b $out/bin/; $out/bin/busybox --install -s $out/bin"
    ];
  };
  runtimeShell = "${pkgs.busybox}/bin/sh";
  unzip = pkgs.busybox;
  coreutils = pkgs.busybox;
  ruff = pkgs.python3Packages.ruff;

  runCommand =
    name: env: script:
    derivation (
      {
        inherit name system;
        builder = pkgs.runtimeShell;
        args = [
          "-euc"
          ''
            export PATH=${
              lib.concatMapStringsSep "" (p: "${p}/bin:") (env.nativeBuildInputs or [ ])
            }${pkgs.busybox}/bin HOME=$TMPDIR SOURCE_DATE_EPOCH=315532800
            ${script}
          ''
        ];
      }
      // removeAttrs env [
        "nativeBuildInputs"
        "meta"
      ]
    )
    // {
      meta = env.meta or { };
    };

  # evaluated by `nix flake check`; there is no shell to enter
  mkShell = { packages, ... }: pkgs.runCommand "nix-shell" { } "echo ${toString packages} > $out";

  # what would go into the image and how it would be started
  dockerTools.buildLayeredImage =
    {
      name,
      tag,
      contents,
      config,
      ...
    }:
    pkgs.runCommand "${name}-image"
      {
        inherit tag;
        json = builtins.toJSON config;
        passAsFile = [ "json" ];
      }
      ''
        mkdir $out; cp $jsonPath $out/config.json; echo ${toString contents} > $out/contents
      '';

  # files of the package index, from among the wheels
  fetchPypi =
    {
      pname,
      version,
      hash,
      ...
    }:
    let
      wheel = index.wheels.${builtins.replaceStrings [ "_" ] [ "-" ] pname};
    in
    assert wheel.version == version;
    wheelFile wheel.file hash;

  # the interpreter and its shared objects, made to find each other in the store; an .so with a RUNPATH of its own
  # ignores the executable's, hence --force-rpath on each
  python =
    pkgs.runCommand "python3"
      {
        libs = ./lib;
        tree = ./python;
      }
      ''
        cp -r $tree $out; chmod -R u+w $out
        host=$out/lib/host; cp -r $libs $host; chmod -R u+w $host
        ${seed}/patchelf --set-interpreter $host/${index.loader} --force-rpath --set-rpath $host $out/bin/${py}
        for so in $host/*.so* $out/lib/${py}/lib-dynload/*.so; do
          case $so in
            */ld-linux* | */libc.so*) ;;
            *) ${seed}/patchelf --force-rpath --set-rpath $host $so ;;
          esac
        done
        ln -s ${py} $out/bin/python3
        $out/bin/python3 -m compileall -q --invalidation-mode unchecked-hash $out/lib/${py}
        $out/bin/python3 -c 'import ssl, ctypes, sqlite3, zlib, asyncio'
      '';
  python3 = pkgs.python // {
    withPackages =
      select:
      pkgs.runCommand "python3-env" { } ''
        mkdir -p $out/bin
        printf '#!%s\nPYTHONPATH=%s exec %s "$@"\n' ${pkgs.runtimeShell} ${
          import ./python-path.nix lib site (select pkgs.python3Packages)
        } ${pkgs.python}/bin/python3 > $out/bin/python3
        chmod 755 $out/bin/python3
      '';
  };

  python3Packages = builtins.mapAttrs (
    pname: wheel:
    pkgs.runCommand "${py}-${pname}-${wheel.version}" { src = wheelFile wheel.file wheel.sha256; } ''
      s=$out/${site}; mkdir -p $s; unzip -q $src -d $s
      for d in $s/*.data; do
        for k in purelib platlib; do
          if [ -d $d/$k ]; then cp -r $d/$k/. $s; fi
        done
        if [ -d $d/scripts ]; then mkdir -p $out/bin; cp -r $d/scripts/. $out/bin; fi
        rm -rf $d
      done
      find $s -name '*.so*' -type f | while read so; do
        chmod u+w $so; ${seed}/patchelf --force-rpath --add-rpath ${pkgs.python}/lib/host $so
      done
      # without these every start would compile; a package may carry files that are not for this Python
      ${pkgs.python}/bin/python3 -m compileall -q --invalidation-mode unchecked-hash $s || true
    ''
    // {
      inherit pname;
      inherit (wheel) version;
      propagated = map (name: pkgs.python3Packages.${name}) wheel.deps;
    }
  ) index.wheels
  // {
    callPackage = lib.callPackageWith (pkgs // pkgs.python3Packages);
    pytestCheckHook = pkgs.python3Packages.pytest;
    buildPythonApplication = import ./application.nix { inherit lib pkgs site; };
  };
})
